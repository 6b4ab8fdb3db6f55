"""What `bench.prediction` runs: shapes, drives, tokens, budgets, and the runs that come of them."""

from dataclasses import dataclass, field, replace
from typing import Any

from headrace.engine import (
    STRATEGIES,
    CannotFit,
    ModelSpec,
    StrategyConflict,
    TrainConfig,
    detect_box,
    make_plan,
    settle_microbatch,
    shape_spec,
)
from headrace.storage import VolumeConfig

MB = 10**6
MIB, GIB = 2**20, 2**30
NEVER = 2**31  # steps; no run has so many
NUM_RIVALS = 3  # on a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration: a shape, a drive's rate in MB/s, rows and their tokens of a step.

    `memory`: of the state, the share that host memory is given on a CPU beside what every run
    needs. `commits`: every step commits; otherwise none does. `steps` are timed, after one.
    """

    name: str
    throttle: int
    rows: int
    tokens: int
    microbatches: int = 2
    memory: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    shape: str = "tiny"
    layers: int = 4
    commits: bool = True
    steps: int = 5

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        return shape_spec(self.shape, self.layers)


CPU = (
    Case(name="slow drive, few tokens", throttle=200, rows=4, tokens=128),
    Case(name="slow drive, more tokens", throttle=200, rows=8, tokens=128),
    Case(name="fast drive, few tokens", throttle=400, rows=4, tokens=128),
    Case(name="fast drive, more tokens", throttle=400, rows=8, tokens=256),
    Case(name="memory for the state", throttle=200, rows=8, tokens=128, memory=3.0),
    Case(name="24 and 8 bits", throttle=100, rows=8, tokens=128, settings={"state_format": "q8"}),
    Case(name="16 bits", throttle=100, rows=8, tokens=128, settings={"state_format": "sr_bf16"}),
    Case(name="one slot", throttle=400, rows=8, tokens=128, settings={"num_slots": 1}),
    Case(name="five slots", throttle=200, rows=8, tokens=128, settings={"num_slots": 5}),
    Case(name="clip by layer", throttle=200, rows=8, tokens=128,
         settings={"clip_mode": "per_layer"}),
)  # fmt: skip

_LLAMA = "llama-8b-vocab-32k"
CUDA = (
    Case(name="state on the device", shape=_LLAMA, layers=8, throttle=1400, rows=16, tokens=1024,
         microbatches=4, commits=False, steps=5,
         settings={"device_bytes": 64 * GIB, "host_bytes": 40 * GIB}),
    Case(name="state in host memory", shape=_LLAMA, layers=8, throttle=1400, rows=16, tokens=1024,
         microbatches=4, commits=False, steps=5,
         settings={"device_bytes": 16 * GIB, "host_bytes": 64 * GIB}),
    Case(name="many tokens", shape=_LLAMA, layers=4, throttle=1400, rows=64, tokens=1024,
         microbatches=16, commits=False, steps=5,
         settings={"device_bytes": 24 * GIB, "host_bytes": 40 * GIB}),
    Case(name="state on the drive", shape=_LLAMA, layers=1, throttle=1400, rows=32, tokens=1024,
         microbatches=4, steps=2,
         settings={"device_bytes": 20 * GIB, "host_bytes": 8 * GIB, "state_tier": "nvme"}),
)  # fmt: skip
CASES = {"cpu": CPU, "cuda": CUDA}


def configure(case: Case, strategy: str, device: str) -> TrainConfig:
    """The run of a case under a strategy, its budgets still open on a CPU."""
    on_gpu = device == "cuda"
    return TrainConfig(
        model="",
        dataset="",
        device=device,  # type: ignore[arg-type]
        compute_dtype="bfloat16" if on_gpu else "float32",
        strategy=strategy,  # type: ignore[arg-type]
        batch_rows=case.rows,
        microbatch_rows=max(1, case.rows // case.microbatches),
        packing="off",
        loss_chunk_tokens=4096 if on_gpu else 256,
        max_grad_norm=1e9,
        commit_every_steps=1 if case.commits else NEVER,
        **case.settings,
    )


def with_budgets(case: Case, config: TrainConfig, volume: VolumeConfig) -> TrainConfig:
    """On a CPU: room for everything but the state, and for the state where the strategy has it.

    Those that split it between device and elsewhere have room for half of it on the device.
    """
    if config.device == "cuda":
        return config
    box = detect_box(device=config.device, volumes=[volume])

    def planned(**changes: Any) -> Any:
        settled = settle_microbatch(replace(config, **changes), case.tokens)
        return make_plan(case.spec, settled, longest_row_tokens=case.tokens, box=box)

    plan = planned(strategy="auto", state_tier="nvme")
    state = sum(plan.basis.sizes.state_bytes)
    tiers = STRATEGIES[config.strategy].tiers
    host = 4 * state if "nvme" not in tiers or config.strategy == "zero_offload" else 0
    keeps = config.strategy in ("zero_infinity", "memascend")  # gradients, whatever the clip mode
    host += state // 2 if keeps else 0
    device = plan.total_device_bytes + 4 * state
    if len(tiers) == 2 and "device" in tiers:
        recomputed = config.recompute if config.recompute != "auto" else "all"
        whole = planned(strategy="resident", recompute=recomputed)
        left_out, slots = state // 2, plan.device_bytes["slots"]
        if slots >= left_out:  # many take as much as that half: then all but a record has room
            left_out = (
                0 if config.strategy == "unified" else slots // plan.basis.placement.num_slots
            )
        device = whole.total_device_bytes - left_out
    return replace(
        config,
        host_bytes=int(plan.total_host_bytes + host + case.memory * state + MIB),
        device_bytes=device,
    )


def contenders(case: Case, device: str, volume: VolumeConfig) -> list[str]:
    """All strategies; on a GPU the best-predicted, by the plans of this moment."""
    if device == "cpu":
        return list(STRATEGIES)
    box = detect_box(device=device, volumes=[volume])
    times: dict[str, float] = {}
    runs: set[Any] = set()
    for name in STRATEGIES:  # auto first
        try:
            config = settle_microbatch(configure(case, name, device), case.tokens)
            plan = make_plan(case.spec, config, longest_row_tokens=case.tokens, box=box)
        except (CannotFit, StrategyConflict):
            continue
        run = (plan.basis.placement, plan.forecast.way)
        if run not in runs:  # else it is one of the others by another name
            runs.add(run)
            times[name] = plan.forecast.step.seconds
    best = sorted(times, key=lambda name: times[name])
    return ["auto", *[name for name in best if name != "auto"]][:NUM_RIVALS]
