"""What a run is asked to do: one frozen record, validated once, with units in the names."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any, Literal, Self, get_args, get_origin

from .errors import BadSetting

Device = Literal["cpu", "cuda"]
ComputeDtype = Literal["float32", "bfloat16"]
ClipMode = Literal["exact", "lagged", "per_layer", "none"]
Method = Literal["full", "lora"]
Objective = Literal["supervised", "dpo"]
NUM_ANSWERS: Mapping[Objective, int] = {"supervised": 1, "dpo": 2}  # that a row has
MAX_LEARNING_RATE = 10  # a rate is below it
USUAL_GRAD_NORM = 1.0
StateFormat = Literal["exact", "q8", "sr_bf16", "sr_q8"]
LrSchedule = Literal["linear", "cosine", "constant"]
StateTier = Literal["auto", "device", "host", "nvme"]
ClipWay = Literal["auto", "serial", "speculative", "deferred"]
Compile = Literal["off", "static", "dynamic"]
Packing = Literal["on", "off"]
Rehearsal = Literal["auto", "on", "off"]
Recompute = Literal["auto", "all", "none"]
FrozenFormat = Literal["auto", "nf4", "int8"]
LoraExport = Literal["adapter", "merged"]
NearTier = Literal["auto", "device", "host"]
StrategyName = Literal[
    "auto", "resident", "zero_offload", "zero_infinity", "megatrain", "teraio", "memascend",
    "ratel", "superoffload", "unified",
]  # fmt: skip
OptimizerDevice = Literal["auto", "device", "host"]
GgufDtype = Literal["off", "auto", "float32", "float16", "bfloat16", "q8_0"]
ExportDtype = Literal["auto", "float32", "bfloat16", "float16"]

MAX_SAMPLES = 16  # of each kind: they are shown to people


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A fully resolved run. Sizes are bytes, lengths tokens, `*_rows` rows of the data set.

    The fields from `seed` to `deterministic` form the numerics key: with the data they decide
    every bit of the result.
    The fields from `device_bytes` on are free: they never change a bit of the result.
    """

    model: str  # directory of the model's files
    dataset: str  # directory made by prepare_dataset
    eval_dataset: str | None = None  # likewise, for the evaluation loss
    assets: str | None = None  # config.json, tokenizer, template; None: beside the model's files
    # numerics key
    seed: int = 0
    device: Device = "cpu"
    compute_dtype: ComputeDtype = "float32"
    state_format: StateFormat = "exact"
    clip_mode: ClipMode = "exact"
    max_grad_norm: float = USUAL_GRAD_NORM
    learning_rate: float = 1e-5
    lr_schedule: LrSchedule = "linear"
    warmup_ratio: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    batch_rows: int = 8
    microbatch_rows: int = 4
    packing: Packing = "on"  # rows of a microbatch one behind the other, instead of padded
    microbatch_tokens: int | None = None  # packed; None: what microbatch_rows of the longest take
    num_epochs: int = 3
    max_steps: int | None = None
    objective: Objective = "supervised"
    dpo_beta: float = 0.1  # how much a change of an answer's log-probability counts
    dpo_label_smoothing: float = 0.0  # share of preferences that are taken to be the wrong way
    method: Method = "full"
    freeze: tuple[str, ...] = ()  # patterns (*, ?, [..]) of names of parameters that stay
    lora_rank: int = 16
    lora_alpha: float = 32.0
    lora_rslora: bool = False
    lora_targets: tuple[str, ...] = ("all-linear",)
    frozen_format: FrozenFormat = "auto"  # auto: as exact as what is computed with
    router_aux_loss_coef: float | None = None  # of a mixture's experts; None: as its config says
    loss_chunk_tokens: int = 256
    compile: Compile = "off"  # torch.compile of the layers, per shape or for all shapes
    deterministic: bool = True
    # what else happens in the run
    eval_every_steps: int | None = None
    checkpoint_every_steps: int | None = None
    checkpoint_every_minutes: float | None = None
    keep_last: int = 1
    keep_best: int = 0  # checkpoints of lowest evaluation loss that stay besides the newest
    early_stop_evals: int | None = None  # end after so many evaluations without a better loss
    early_stop_delta: float = 0.0  # better means lower by more than this
    rehearsal: Rehearsal = "auto"  # the largest step before the first; auto: unless it comes soon
    row_losses: bool = True  # write down each row's loss, and tell which rows stand out
    sample_prompts: tuple[str, ...] = ()  # texts that the model goes on from at evaluations
    sample_rows: int = 0  # likewise, so many rows of the evaluation data
    sample_tokens: int = 64  # written for each prompt, at most
    sample_prompt_tokens: int = 512  # of a prompt, at most: of a longer one the last
    sample_temperature: float = 0.0  # 0: always the likeliest token
    sample_seed: int = 0
    export_dtype: ExportDtype = "auto"
    lora_export: LoraExport = "adapter"
    export_gguf: GgufDtype = "off"  # a GGUF file of the whole model beside the export
    check_export: bool = True  # read exports back and compare logits
    # placement: free, never changes a bit
    device_bytes: int | None = None  # None: what the box has
    host_bytes: int | None = None
    volumes: tuple[str, ...] = ()  # directories, each with an optional ":BYTES" limit
    strategy: StrategyName = "auto"  # a published system's way, for what is left open below
    state_tier: StateTier = "auto"
    num_slots: int | None = None
    recompute: Recompute = "auto"
    activation_tier: StateTier = "auto"  # of boundary activations
    grad_tier: NearTier = "auto"  # of gradients that wait, where the state is not on the device
    clip_way: ClipWay = "auto"
    optimizer_device: OptimizerDevice = "auto"  # what updates layers whose state is in host memory
    optimizer_host_share: float | None = None  # with auto: of these layers; None: the plan's choice
    commit_every_steps: int = 1
    commit_every_minutes: float | None = None  # also when so long has passed since the last one
    keep_commits: int = 0  # resumable commits kept besides the live one, at each checkpoint
    compile_cache: str | None = None  # directory of compiled layers; None: torch's, a temporary one
    prefill: bool = False  # write every extent once at creation, so that later writes are faster
    max_bytes_written: int | None = None  # pause before the volumes have taken more than this
    calibrate: bool = False  # measure what is not known of drives and compute before planning
    max_wear_share: float | None = None  # refuse a run that takes more of the drives' rated life

    def __post_init__(self) -> None:
        for field in fields(self):
            choices = _choices(field.type)
            value = getattr(self, field.name)
            if choices and value not in choices:
                wanted = ", ".join(map(str, choices))
                raise BadSetting(f"{field.name} is {value!r}; wanted one of {wanted}")
        for name in ("batch_rows", "microbatch_rows", "num_epochs", "loss_chunk_tokens",
                     "commit_every_steps"):  # fmt: skip
            if getattr(self, name) < 1:
                raise BadSetting(f"{name} is {getattr(self, name)}; wanted at least 1")
        for name in ("keep_commits", "keep_best", "early_stop_delta"):
            if getattr(self, name) < 0:
                raise BadSetting(f"{name} is {getattr(self, name)}; wanted 0 or more")
        for name in ("commit_every_minutes", "checkpoint_every_minutes"):
            minutes = getattr(self, name)
            if minutes is not None and not minutes > 0:
                raise BadSetting(f"{name} is {minutes}; wanted more than 0, or nothing")
        for name in ("max_steps", "eval_every_steps", "checkpoint_every_steps", "num_slots",
                     "max_bytes_written", "early_stop_evals", "microbatch_tokens"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadSetting(f"{name} is {value}; wanted at least 1, or nothing")
        self._check_optimizer_share()
        self._check_samples()
        if self.packing == "off" and self.microbatch_tokens is not None:
            raise BadSetting("microbatch_tokens is for packed rows, but packing is off")
        if self.max_wear_share is not None and not self.max_wear_share > 0:
            raise BadSetting(f"max_wear_share is {self.max_wear_share}; wanted a share above 0")
        self._check_method()
        if self.router_aux_loss_coef is not None and not 0 <= self.router_aux_loss_coef < inf:
            raise BadSetting(
                f"router_aux_loss_coef is {self.router_aux_loss_coef}; wanted 0 (for none) or more"
            )
        if not 0 < self.learning_rate < MAX_LEARNING_RATE:
            message = (
                f"learning_rate is {self.learning_rate}; wanted 0 < rate < {MAX_LEARNING_RATE}"
            )
            raise BadSetting(message)
        if not self.max_grad_norm > 0:
            raise BadSetting(f"max_grad_norm is {self.max_grad_norm}; wanted a number above 0")
        if self.clip_mode == "none" and self.max_grad_norm != USUAL_GRAD_NORM:
            raise BadSetting(
                f"max_grad_norm is {self.max_grad_norm:g}, but clip_mode none clips nothing; leave "
                "one of them out",
                setting="max_grad_norm",
            )
        if not 0 <= self.warmup_ratio <= 1:
            raise BadSetting(f"warmup_ratio is {self.warmup_ratio}; wanted 0 to 1")
        if not 0 <= self.weight_decay < 1:
            raise BadSetting(f"weight_decay is {self.weight_decay}; wanted 0 <= decay < 1")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0):
            raise BadSetting("wanted 0 <= beta1 < 1, 0 <= beta2 < 1 and eps > 0")

    def _check_method(self) -> None:
        if not 0 < self.dpo_beta <= 100:
            raise BadSetting(f"dpo_beta is {self.dpo_beta}; wanted 0 < beta <= 100")
        if not 0 <= self.dpo_label_smoothing < 0.5:
            smoothing = self.dpo_label_smoothing
            raise BadSetting(f"dpo_label_smoothing is {smoothing}; wanted 0 to less than 0.5")
        if self.frozen_format != "auto" and self.method == "full" and not self.freeze:
            raise BadSetting(f"frozen_format is {self.frozen_format!r}, and nothing is frozen")
        if self.method == "lora" and self.freeze:
            raise BadSetting("freeze is set, and method lora freezes the whole model already")
        if self.lora_rank < 1 or not self.lora_alpha > 0 or not all(self.lora_targets):
            raise BadSetting(
                f"wanted lora_rank of at least 1 (now {self.lora_rank}), lora_alpha above 0 "
                f"(now {self.lora_alpha}) and lora_targets that are not empty"
            )
        if not self.lora_targets:
            raise BadSetting("lora_targets is empty; wanted all-linear, or names of projections")

    def _check_samples(self) -> None:
        if not 0 <= self.sample_rows <= MAX_SAMPLES or len(self.sample_prompts) > MAX_SAMPLES:
            raise BadSetting(
                f"{len(self.sample_prompts)} sample_prompts and sample_rows {self.sample_rows}; "
                f"wanted at most {MAX_SAMPLES} of each"
            )
        if self.sample_tokens < 1 or self.sample_prompt_tokens < 1:
            raise BadSetting(
                f"sample_tokens is {self.sample_tokens} and sample_prompt_tokens "
                f"{self.sample_prompt_tokens}; wanted at least 1"
            )
        if not 0 <= self.sample_temperature < 100:
            raise BadSetting(
                f"sample_temperature is {self.sample_temperature}; wanted 0 (the likeliest token) "
                "up to 100"
            )

    @property
    def num_samples(self) -> int:
        """Texts that are written at every evaluation."""
        return len(self.sample_prompts) + self.sample_rows

    def _check_optimizer_share(self) -> None:
        share = self.optimizer_host_share
        if share is None:
            return
        if not 0 <= share <= 1:
            raise BadSetting(f"optimizer_host_share is {share}; wanted 0 to 1, or nothing")
        if self.optimizer_device != "auto":
            raise BadSetting(
                f"optimizer_host_share is {share}, but optimizer_device is "
                f"{self.optimizer_device!r}; a share goes with auto alone"
            )

    @property
    def numerics_key(self) -> dict[str, Any]:
        """The fields that decide every bit of the result, by name; stored with the job."""
        names = [field.name for field in fields(self)]
        stop = names.index("deterministic") + 1
        values = {name: getattr(self, name) for name in names[names.index("seed") : stop]}
        # As JSON gives it back, since that is what a commit carries.
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote. BadSetting for an unknown field or a bad value."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise BadSetting(f"unknown settings: {', '.join(unknown)}")
        given: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**given)


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()
