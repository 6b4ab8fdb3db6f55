"""What each way to keep the training state costs in bytes, and what that means on a box. Pure.

The ways of published systems beside our own formats, by the bytes that a parameter takes over
each link in one step, when weights are recomputed from and gradients stay on the device. A plan
counts the bytes of a run exactly; this table says at a glance which way a box is good for.
"""

from dataclasses import dataclass

from .rates import Rates, VolumeRates

HOST_BYTES_PER_UPDATE = 28  # AdamW on the processor, fp32: four arrays read, three written


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way. Bytes a parameter: `streamed` of a weight as it goes to the device, forward and
    backward; `state` of what else is read for the update; `written` of what comes back.

    `cached`: streamed weights stay in host memory. `on_host`: the processor updates, so that
    gradients of two bytes go down and state crosses no link. `passes`: 8 operations a parameter
    and token where everything is trained with recompute, 6 where the base is frozen.
    """

    name: str
    streamed: float = 2.0
    state: float
    written: float
    cached: bool = False
    on_host: bool = False
    operations: int = 8

    @property
    def drive_read(self) -> float:
        """Bytes read from the drive."""
        return self.state + (0 if self.cached else 2 * self.streamed)

    @property
    def drive_write(self) -> float:
        """Bytes written to the drive."""
        return self.written - (self.streamed if self.cached else 0)

    @property
    def up(self) -> float:
        """Bytes copied to the device."""
        return 2 * self.streamed + (0 if self.on_host else self.state)

    @property
    def down(self) -> float:
        """Bytes copied from the device."""
        return 2.0 if self.on_host else self.written


def _with_cached(scheme: Scheme) -> tuple[Scheme, Scheme]:
    """The scheme, and itself with weights in host memory."""
    return scheme, Scheme(
        name=f"{scheme.name}, weights in memory",
        streamed=scheme.streamed,
        state=scheme.state,
        written=scheme.written,
        cached=True,
        on_host=scheme.on_host,
    )


SCHEMES: tuple[Scheme, ...] = (
    # fp32 gradients are written and read back, too; in one microbatch a step
    Scheme(name="zero_infinity", state=16, written=18, on_host=True),
    *_with_cached(Scheme(name="fp32 and a bf16 copy, updated on the host", state=12, written=14,
                         on_host=True)),
    Scheme(name="fp32 and a bf16 copy", state=12, written=14),
    *_with_cached(Scheme(name="exact", state=10, written=12)),
    Scheme(name="sr_fp32", state=8, written=10),
    Scheme(name="sr_bf16", state=4, written=6),
    *_with_cached(Scheme(name="q8", state=3.1, written=5.1)),
    *_with_cached(Scheme(name="sr_q8", state=2.1, written=4.1)),
    Scheme(name="no optimizer state", state=0, written=2),
    Scheme(name="projected state, rank d/4", state=2, written=4),
    Scheme(name="adapters on bf16", state=0, written=0, operations=6),
    Scheme(name="adapters on 4 bits", streamed=0.55, state=0, written=0, operations=6),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeCost:
    """A scheme on a box, for a model and a step.

    `drive_tokens`: tokens of a step from which compute hides the drives; `link_tokens`: from which
    it hides the link to the device, in each pass. `life_steps`: steps that new drives last.
    """

    scheme: str
    drive_read: float
    drive_write: float
    up: float
    down: float
    drive_tokens: float
    link_tokens: float
    compute_seconds: float
    drive_seconds: float
    link_seconds: float
    host_update_seconds: float
    written_bytes: float
    life_steps: float | None


def compare_schemes(
    rates: Rates,
    drives: VolumeRates,
    *,
    num_params: float,
    tokens: int,
    passed_share: float = 1.0,
) -> list[SchemeCost]:
    """Every scheme for a model of so many parameters and a step of so many tokens.

    All parameters move, and a token is computed with `passed_share` of them: of a mixture it
    passes some experts alone.
    """
    flops = rates.flops(tokens, backward=True) / passed_share
    up_rate, down_rate = rates.link(busy=True)

    def cost(scheme: Scheme) -> SchemeCost:
        drive = drives.seconds(scheme.drive_read, scheme.drive_write)
        link = max(scheme.up / up_rate, scheme.down / down_rate)
        written = scheme.drive_write * num_params
        per_token = scheme.operations / flops
        return SchemeCost(
            scheme=scheme.name,
            drive_read=scheme.drive_read,
            drive_write=scheme.drive_write,
            up=scheme.up,
            down=scheme.down,
            drive_tokens=drive / per_token,
            # Forward alone, with its 2 operations, may bind before the whole step does.
            link_tokens=max(link / per_token, scheme.streamed / up_rate / (2 / flops)),
            compute_seconds=num_params * tokens * per_token,
            drive_seconds=num_params * drive,
            link_seconds=num_params * link,
            host_update_seconds=num_params * HOST_BYTES_PER_UPDATE / rates.host_memory,
            written_bytes=written,
            life_steps=drives.rated_bytes / written if drives.rated_bytes and written else None,
        )

    return [cost(scheme) for scheme in SCHEMES]
