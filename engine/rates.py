"""What a box can do a second: its drives, links, memory, arithmetic. Pure, JSON both ways.

Figures are measured here by `headrace calibrate`, described in a file for a box that one does
not own, or, for want of both, those of a usual box of its kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from headrace.storage import busy_words

from .config import TrainConfig
from .model import ModelSpec

Origin = Literal["default", "described", "measured"]
# Work on every parameter of a record, besides matrix products. `join`: the halves of a master to
# an fp32 weight; `join_kept`: to memory of its own, which a kept layer's weights take anew in
# every step. `accumulate`: one microbatch's gradient to the sum. `finish`: a sum rounded, and
# its norm. `update`: AdamW on the compute device; `host_update`: on the processor, in place;
# `host_update_aside`: from one version of the state to the other.
Work = Literal[
    "join", "join_kept", "accumulate", "finish", "update", "host_update", "host_update_aside"
]
# Bytes of memory that each touches per parameter, to have a rate where only a bandwidth is known.
BYTES_TOUCHED: Mapping[Work, int] = {
    "join": 8, "join_kept": 8, "accumulate": 10, "finish": 8, "update": 28, "host_update": 28,
    "host_update_aside": 40,  # the place that is written to is read first
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRates:
    """One drive, in bytes a second. `mixed`: reads and writes together, half of each.

    `rated_bytes` is what it may be written in its life, as its maker says; `written_bytes` what
    it has been.
    """

    read: float
    write: float
    mixed: float | None = None
    rated_bytes: float | None = None
    written_bytes: float = 0.0

    @property
    def mixed_rate(self) -> float:
        """As measured, or that of a drive which shares its time between the directions."""
        return self.mixed or 2 / (1 / self.read + 1 / self.write)

    def seconds(self, read_bytes: float, written_bytes: float) -> float:
        """Seconds to read and write so much: what can be mixed is, the rest at its own rate."""
        both = min(read_bytes, written_bytes)
        alone = (read_bytes - both) / self.read + (written_bytes - both) / self.write
        return 2 * both / self.mixed_rate + alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRate:
    """Floating-point operations a second of a layer for microbatches of so many tokens.

    Those of a layer that is computed again in backward, and, `kept`, of one whose activations
    stay: its forward pass writes them to fresh memory, and backward comes to them after other
    layers. Where the latter were not measured, a kept layer goes by the former.
    """

    tokens: int
    forward_flops: float
    backward_flops: float
    kept_forward_flops: float | None = None
    kept_backward_flops: float | None = None

    def flops(self, *, backward: bool, kept: bool) -> float:
        """Of one direction."""
        plain = self.backward_flops if backward else self.forward_flops
        own = self.kept_backward_flops if backward else self.kept_forward_flops
        return own if kept and own is not None else plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRates:
    """What was measured for the layers and the head of one shape, dtype and way to compile.

    `work`: of all but what the processor does, parameters a second on records of that size.
    `visit_seconds`: what a visit takes beside them on a processor, whose caches other layers have
    filled meanwhile.
    `held_up`: the share of the time that other work held the process up while it measured. `drift`:
    what a run since has found of these figures, in words.
    """

    measured_at: str
    layers: tuple[LayerRate, ...]
    head_flops: float
    work: Mapping[Work, float] = field(default_factory=dict)
    visit_seconds: float = 0.0
    held_up: float = 0.0
    drift: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` made."""
        layers = tuple(LayerRate(**one) for one in values["layers"])
        return cls(**{**values, "layers": layers})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a box costs an hour, part by part, in one currency."""

    device: float = 0.0
    host: float = 0.0
    volumes: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return self.device + self.host + self.volumes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A box's rates: bytes, parameters and floating-point operations a second.

    `h2d` and `d2h` are a direction of the link alone, `both` each of them when both are busy. A
    volume that `volumes` does not name is taken for a `default_volume`. `layers` is by tokens,
    ascending. `visit_seconds`: what a visit takes beside its bytes and operations; `read_seconds`
    and `write_seconds`: what the store takes for a record from or to the drives beside its bytes,
    where the processor computes. `held_up`: the
    share of the time that other work held the process up while it measured. `doubts`: why measured
    figures are worth less than such, in words.
    """

    origin: Origin
    name: str = ""
    measured_at: str = ""
    h2d: float
    d2h: float
    both: float | None = None
    host_memory: float
    device_memory: float
    layers: tuple[LayerRate, ...]
    head_flops: float | None = None
    work: Mapping[Work, float] = field(default_factory=dict)
    visit_seconds: float = 0.0
    read_seconds: float = 0.0
    write_seconds: float = 0.0
    default_volume: VolumeRates
    volumes: Mapping[str, VolumeRates] = field(default_factory=dict)
    prices: Prices | None = None
    unified: bool = False  # the device's memory is the host's
    shapes: Mapping[str, ShapeRates] = field(default_factory=dict)
    rated_bytes: Mapping[str, float] = field(default_factory=dict)  # of the drive of each volume
    held_up: float = 0.0
    doubts: tuple[str, ...] = ()

    def for_shape(self, key: str) -> "Rates":
        """The rates with the layers of that shape (`shape_key`), where it was measured.

        A measured box that has not seen the shape goes by the one that it measured last, and what
        comes of that is worth no more than a guess.
        """
        if not self.shapes:
            return self
        found = self.shapes.get(key)
        chosen = found or max(self.shapes.values(), key=lambda one: one.measured_at)
        return replace(
            self,
            origin="measured" if found else "default",
            measured_at=chosen.measured_at,
            layers=chosen.layers,
            head_flops=chosen.head_flops,
            work={**self.work, **chosen.work},
            visit_seconds=self.visit_seconds + chosen.visit_seconds,
            doubts=(*self.doubts, *self._doubts(found)) if found else (),
        )

    def _doubts(self, shape: ShapeRates) -> list[str]:
        busy = busy_words(max(self.held_up, shape.held_up))
        return [words for words in (shape.drift, busy) if words]

    def flops(self, tokens: int, *, backward: bool, kept: bool = False) -> float:
        """Operations a second at microbatches of that size, between the nearest known ones.

        `kept`: of a layer whose activations stay from forward to backward.
        """
        rates = [(one.tokens, one.flops(backward=backward, kept=kept)) for one in self.layers]
        below = [one for one in rates if one[0] <= tokens]
        above = [one for one in rates if one[0] > tokens]
        if not below or not above:
            return (below[-1] if below else above[0])[1]
        (left, low), (right, high) = below[-1], above[0]
        return low + (high - low) * (tokens - left) / (right - left)

    def params_per_second(self, work: Work) -> float:
        """Parameters a second: as measured, or as the memory that the work touches allows."""
        memory = self.host_memory if work.startswith("host") else self.device_memory
        return self.work.get(work) or memory / BYTES_TOUCHED[work]

    def link(self, *, busy: bool) -> tuple[float, float]:
        """Bytes a second up to the device and down from it; `busy`: both at once."""
        if not busy or self.both is None:
            return self.h2d, self.d2h
        return min(self.h2d, self.both), min(self.d2h, self.both)

    def drives(self, paths: Sequence[str]) -> VolumeRates:
        """All volumes as one drive. Each takes the share of a record that its store deals it.

        That is by mixed rate, and an equal one where the rate of any volume is not known.
        """
        each = [self.volumes.get(path, self.default_volume) for path in paths]
        each = each or [self.default_volume]
        known = all(path in self.volumes for path in paths)
        weights = [one.mixed_rate if known else 1.0 for one in each]
        shares = [weight / sum(weights) for weight in weights]
        rated = [one.rated_bytes for one in each]
        return VolumeRates(
            read=min(one.read / share for one, share in zip(each, shares, strict=True)),
            write=min(one.write / share for one, share in zip(each, shares, strict=True)),
            mixed=min(one.mixed_rate / share for one, share in zip(each, shares, strict=True)),
            rated_bytes=sum(rated) if None not in rated else None,  # type: ignore[arg-type]
            written_bytes=sum(one.written_bytes for one in each),
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        prices = values.get("prices")
        nested = {
            "layers": tuple(LayerRate(**one) for one in values["layers"]),
            "default_volume": VolumeRates(**values["default_volume"]),
            "volumes": {path: VolumeRates(**one) for path, one in values["volumes"].items()},
            "prices": None if prices is None else Prices(**prices),
            "doubts": tuple(values.get("doubts", ())),
            "shapes": {
                key: ShapeRates.from_dict(one) for key, one in values.get("shapes", {}).items()
            },
        }
        return cls(**{**values, **nested})


def shape_key(spec: ModelSpec, config: TrainConfig) -> str:
    """What the speed of a model's layers depends on, in one word."""
    return (
        f"{spec.family} {spec.hidden_size}x{spec.intermediate_size} {spec.num_heads}/"
        f"{spec.num_kv_heads}x{spec.head_dim} v{spec.vocab_size} {config.compute_dtype} "
        f"{config.device} compile={config.compile} {config.state_format} {config.method}"
    )


def default_rates(device: str) -> Rates:
    """A usual box of that kind, to weigh one choice against another until it is calibrated.

    For `cuda` the reference box of engine/README.md; for `cpu` a few cores of a server.
    """
    if device == "cuda":
        return Rates(
            origin="default",
            name="a data-centre GPU on PCIe 5",
            h2d=55e9,
            d2h=55e9,
            both=44e9,
            host_memory=150e9,
            device_memory=3e12,
            layers=(LayerRate(tokens=4096, forward_flops=550e12, backward_flops=550e12),),
            default_volume=VolumeRates(read=5e9, write=4e9),
        )
    return Rates(
        origin="default",
        name="a few processor cores",
        h2d=6e9,
        d2h=6e9,
        host_memory=12e9,
        device_memory=12e9,
        layers=(LayerRate(tokens=256, forward_flops=1e11, backward_flops=1e11),),
        work={
            "join": 5e8,
            "join_kept": 4e8,
            "accumulate": 8e8,
            "finish": 3e8,
            "update": 1e8,
            "host_update": 1e8,
        },
        default_volume=VolumeRates(read=2e9, write=1.5e9),
    )
