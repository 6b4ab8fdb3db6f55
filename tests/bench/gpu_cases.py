"""What `bench.gpu_step` runs: shapes, budgets, contenders, and what is promised of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TOKENS_PER_ROW = 1024
GIB = 2**30
DEVICE_BYTES = 131 * GIB  # of 139.8: more than the nine tenths that are taken unasked
HOST_BYTES = 108 * GIB  # of 125: a machine whose memory grows as it is used shows less at first


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table. Rows hold TOKENS_PER_ROW tokens; seconds are of one contender.

    `peers` maps a peer to the ratio of model TFLOPS promised over it, `who` names the product's
    contenders. `on_drive`: some of the state lies there, so it is measured and the plan goes by
    that. `limit` names what the product's step is held against, `limit_ratio` how near it
    must come; `clipped_ratio` is what a step that clips must reach of one that does not, `tflops`
    the model TFLOPS promised. `device_gib` and `host_gib` are what the whole process may take of
    the device, CUDA's own start-up included, and of host memory, its imports not.
    """

    shape: str
    layers: int
    rows: int
    microbatch_rows: int = 16
    tokens_per_row: int = TOKENS_PER_ROW
    settings: Mapping[str, Any] = field(default_factory=dict)
    peers: Mapping[str, float] = field(default_factory=dict)
    who: tuple[str, ...] = ("headrace", "headrace-clipping")
    commit: bool = False
    on_drive: bool = False
    limit: Literal["", "pcie", "drive"] = ""
    limit_ratio: float = 0.0
    clipped_ratio: float = 0.0
    tflops: float = 0.0
    device_gib: float | None = None
    host_gib: float | None = None
    steps: int = 4
    seconds: int = 150
    device: str = "cuda"

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.rows * self.tokens_per_row


_LLAMA = "llama-8b-vocab-32k"
CASES: dict[str, Case] = {
    "12x16k": Case(
        shape=_LLAMA,
        layers=12,
        rows=16,
        peers={"pytorch": 1.15, "pytorch-compiled": 1.0},
        clipped_ratio=0.90,
    ),
    "24x16k": Case(
        shape=_LLAMA,
        layers=24,
        rows=16,
        peers={"pytorch": 1.15, "pytorch-compiled": 1.0},
        clipped_ratio=0.90,
    ),
    "24x64k": Case(
        shape=_LLAMA,
        layers=24,
        rows=64,
        peers={"pytorch-checkpoint": 1.3},
        clipped_ratio=0.95,
        steps=3,
        seconds=200,
    ),
    "12x16k-host": Case(
        shape=_LLAMA,
        layers=12,
        rows=16,
        settings={"state_tier": "host"},
        limit="pcie",
        limit_ratio=0.95,
    ),
    "12x16k-16gib": Case(
        shape=_LLAMA,
        layers=12,
        rows=16,
        microbatch_rows=8,
        settings={"device_bytes": 16 * GIB, "loss_chunk_tokens": 1024},
        peers={"deepspeed": 2.5},
        steps=3,
        seconds=240,
    ),
    "8x64k-nvme": Case(
        shape=_LLAMA,
        layers=8,
        rows=64,
        settings={"state_tier": "nvme", "host_bytes": 8 * GIB},
        commit=True,
        on_drive=True,
        limit="drive",
        limit_ratio=0.95,
        steps=2,
        seconds=300,
    ),
    "llama3-8b-32k": Case(shape="llama3-8b", layers=32, rows=32, tflops=400, steps=3, seconds=240),
    "14b-exact": Case(
        shape="14b",
        layers=48,
        rows=64,
        microbatch_rows=8,
        settings={"device_bytes": DEVICE_BYTES, "loss_chunk_tokens": 1024},
        steps=2,
        seconds=300,
    ),
    # What does not fit in memory lies on a drive of 64 GiB, in two versions: fewer tokens leave
    # more of it on the device.
    "32b-q8": Case(
        shape="32b",
        layers=64,
        rows=16,
        microbatch_rows=8,
        settings={
            "state_format": "q8",
            "device_bytes": DEVICE_BYTES,
            "loss_chunk_tokens": 1024,
        },
        on_drive=True,
        steps=2,
        seconds=300,
    ),
    # Adapters on a base that is larger than all memory given. Of that the settings leave something
    # for CUDA's start-up and what Python holds.
    "70b-qlora": Case(
        shape="llama3-70b",
        layers=80,
        rows=8,
        microbatch_rows=4,
        settings={
            "method": "lora",
            "frozen_format": "nf4",
            "device_bytes": 23 * GIB,
            "host_bytes": 46 * GIB,
            "loss_chunk_tokens": 1024,
        },
        who=("headrace",),
        device_gib=24,
        host_gib=48,
        commit=True,
        steps=3,
        seconds=300,
    ),
    "70b-lora": Case(
        shape="llama3-70b",
        layers=80,
        rows=8,
        microbatch_rows=2,
        settings={
            "method": "lora",
            "device_bytes": 23 * GIB,
            "host_bytes": 97 * GIB,
            "loss_chunk_tokens": 1024,
        },
        on_drive=True,
        who=("headrace",),
        device_gib=24,
        host_gib=100,
        commit=True,
        steps=2,
        seconds=480,
    ),
    # Not of the table: every contender's code within seconds, on any machine.
    "smoke": Case(
        shape="tiny",
        layers=2,
        rows=2,
        microbatch_rows=1,
        tokens_per_row=16,
        settings={"state_tier": "nvme", "compute_dtype": "float32", "compile": "off"},
        peers={"pytorch": 0.0, "pytorch-checkpoint": 0.0},
        commit=True,
        on_drive=True,
        limit="drive",
        clipped_ratio=0.01,
        steps=1,
        seconds=120,
        device="cpu",
    ),
    "smoke-qlora": Case(
        shape="tiny",
        layers=2,
        rows=2,
        microbatch_rows=1,
        tokens_per_row=16,
        settings={
            "method": "lora",
            "frozen_format": "nf4",
            "state_tier": "nvme",
            "compute_dtype": "float32",
            "compile": "off",
        },
        who=("headrace",),
        device_gib=1,
        host_gib=1,
        commit=True,
        steps=1,
        seconds=120,
        device="cpu",
    ),
}
TABLE = tuple(name for name in CASES if not name.startswith("smoke"))

# The product's contenders: (a) never clips, though the norm is taken and judged; (b) always does.
PRODUCT: dict[str, dict[str, Any]] = {
    "headrace": {"deterministic": False, "max_grad_norm": 1e9},
    "headrace-clipping": {"deterministic": False, "max_grad_norm": 1.0},
    "headrace-deterministic": {"deterministic": True, "max_grad_norm": 1e9},
}
PEERS = ("pytorch", "pytorch-compiled", "pytorch-checkpoint", "deepspeed")
