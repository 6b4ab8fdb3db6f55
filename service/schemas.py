"""What create requests may say, in the OpenAI shape with Headrace's own optional fields.

"auto" and null mean the same as leaving a field out. An unknown field is refused at any depth: a
setting that is silently dropped is worse than an error.
"""

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError
from pydantic import model_validator as validator

from headrace.engine import StrategyName

from .errors import ApiError
from .job_fields import METHODS, JobFields, place_of_settings
from .job_parts import (
    Adapter,
    CommitEvery,
    Dataset,
    EarlyStopping,
    Every,
    Export,
    Integration,
    Limits,
    check_durability,
    check_exports,
)
from .method import method_of, speaking_of
from .strict import HYPERPARAMETERS, Bytes, Count, Name, Positive, Strict, Text

STRATEGY = (
    "A published system's way to place state and order work, where the rest of the request leaves "
    "it open. It changes no bit of the result. auto: the placement with the shortest predicted step"
)
HOST_BYTES = (
    "Host memory at most. What does not fit beside the device waits on the volumes: state between "
    "steps and, where they must, inputs of layers until their backward pass. The plan counts both "
    "in the room demanded and in what is written."
)
Compile = Literal["off", "static", "dynamic"]
COMPILE = (
    "Whether torch.compile makes the layers: once for all lengths (dynamic), for each (static), or "
    "not at all. Left open: dynamic on a GPU where the model's layers can, and off on a CPU. What "
    "was compiled stays in the data directory, for later jobs."
)
NOT_FIELDS = ("body", "query", "path")  # in the places that pydantic tells
Key = Annotated[Text, StringConstraints(max_length=64)]
Value = Annotated[Text, StringConstraints(max_length=512)]
Suffix = Annotated[
    str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]*$")
]


class Hyperparameters(Strict):
    """The three of OpenAI, then Headrace's own. Sizes count rows, lengths tokens."""

    path = HYPERPARAMETERS
    not_here = {
        "neftune": "no noise is added to embeddings",
    }

    batch_size: Annotated[int, Field(ge=1, le=256)] | None = None
    learning_rate_multiplier: Positive | None = None
    n_epochs: Annotated[int, Field(ge=1, le=50)] | None = None

    learning_rate: Annotated[float, Field(gt=0, lt=10)] | None = None
    lr_scheduler: Literal["linear", "cosine", "constant"] | None = None
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    weight_decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    max_grad_norm: Positive | None = None
    clip_mode: Literal["exact", "lagged", "per_layer", "none"] | None = None
    router_aux_loss_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    gradient_accumulation_steps: Count | None = None
    packing: Literal["on", "off"] | None = None
    compile: Annotated[Literal["off", "static", "dynamic"], Field(description=COMPILE)] | None = (
        None
    )
    microbatch_tokens: Count | None = None
    max_steps: Count | None = None
    max_seq_len: Count | None = None
    overlong: Literal["error", "drop", "truncate_left", "truncate_right"] | None = None
    train_on: Literal["assistant", "last_assistant", "each_assistant", "all"] | None = None
    loss_chunk: Count | None = None
    eval_every: Count | None = None
    rehearsal: Literal["on", "off"] | None = None
    row_losses: bool | None = None
    sample_prompts: Annotated[list[Name], Field(min_length=1, max_length=16)] | None = None
    sample_rows: Annotated[int, Field(ge=0, le=16)] | None = None
    sample_tokens: Annotated[int, Field(ge=1, le=4096)] | None = None
    sample_prompt_tokens: Count | None = None
    sample_temperature: Annotated[float, Field(ge=0, lt=100, allow_inf_nan=False)] | None = None
    sample_seed: Annotated[int, Field(ge=0, le=2147483647)] | None = None
    early_stopping: EarlyStopping | None = None
    checkpoint_every: Every | None = None
    keep_last: Count | None = None
    keep_best: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    optimizer: Literal["adamw"] | None = None
    adapter: Adapter | None = None
    freeze: Annotated[list[Name], Field(min_length=1)] | None = None


class DpoHyperparameters(Hyperparameters):
    """Those of supervised training, and what preferences take besides. Rows are preferences."""

    path = "method.dpo.hyperparameters"

    beta: Annotated[float, Field(gt=0, le=2)] | None = None
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] | None = None


class Supervised(Strict):
    """The settings of the supervised method."""

    path = "method.supervised"

    hyperparameters: Hyperparameters = Hyperparameters()


class Dpo(Strict):
    """The settings of direct preference optimization."""

    path = "method.dpo"

    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class Method(Strict):
    """How to train: on answers, or on preferences between two of them."""

    path = "method"

    type: Literal["supervised", "dpo"] = "supervised"
    supervised: Supervised = Supervised()
    dpo: Dpo = Dpo()

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Those of its type."""
        return self.dpo.hyperparameters if self.type == "dpo" else self.supervised.hyperparameters

    @validator(mode="wrap")
    @classmethod
    def _refuse_other_methods(cls, values: Any, validate: Any) -> Self:
        if not isinstance(values, dict):
            return validate(values)  # type: ignore[no-any-return]
        kind = values.get("type", "supervised")
        if kind not in ("supervised", "dpo"):
            message = f"method.type {kind!r:.80} is not supported; wanted 'supervised' or 'dpo'."
            raise ApiError(400, message, param="method.type", code="unsupported_method")
        other = "supervised" if kind == "dpo" else "dpo"
        if values.get(other) is not None:
            is_said = "type" in values
            message = f"method.{other} is given, but method.type is {kind!r}; give one method."
            if not is_said:
                message = f"method.{other} is given without its type; give method.type {other!r}."
            raise ApiError(400, message, param=f"method.{other}", code="invalid_value")
        with speaking_of(kind):
            return validate(values)  # type: ignore[no-any-return]


class LegacyHyperparameters(Hyperparameters):
    """The deprecated top-level form of the same settings."""

    path = "hyperparameters"


class ResumeJob(Strict):
    """The optional body of POST /v1/fine_tuning/jobs/{id}/resume: new limits."""

    limits: Limits


class CreateJob(Strict):
    """The body of POST /v1/fine_tuning/jobs and /v1/fine_tuning/plans.

    `resume_from` is a checkpoint or a finished job, whose weights the new job starts from, or a
    failed job, whose training state it goes on with.
    """

    not_here = {
        "chat_template": "the model's own is used",
    }

    model: Name
    training_file: Name
    validation_file: Name | None = None
    suffix: Suffix | None = None
    seed: Annotated[int, Field(ge=0, le=2147483647)] | None = None
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    integrations: Annotated[list[Integration], Field(max_length=1)] | None = None
    method: Method | None = None
    hyperparameters: LegacyHyperparameters | None = None

    dry_run: bool = False
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    device_bytes: Bytes | None = None
    host_bytes: Annotated[Bytes, Field(description=HOST_BYTES)] | None = None
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    state_format: Literal["exact", "q8", "economy", "sr_bf16", "sr_q8"] | None = None
    deterministic: bool | None = None
    strategy: Annotated[StrategyName, Field(description=STRATEGY)] | None = None
    commit_every: Count | None = None
    durability: Annotated[
        Literal["step", "none"] | CommitEvery | None, BeforeValidator(check_durability)
    ] = None
    keep_commits: Annotated[int, Field(ge=0, le=16)] | None = None
    limits: Limits | None = None
    export: Annotated[list[Export], Field(min_length=1, max_length=2)] | None = None
    resume_from: Name | None = None
    dataset: Dataset | None = None

    @validator(mode="after")
    def _agree(self) -> Self:
        old, new = self.hyperparameters, self.method
        if old and new and old.given() != new.hyperparameters.given():
            raise ApiError(
                400,
                f"hyperparameters and method.{new.type}.hyperparameters differ; give the latter.",
                param="hyperparameters",
                code="conflicting_hyperparameters",
            )
        if self.commit_every is not None and self.durability is not None:
            message = "commit_every and durability say the same; give one of them."
            raise ApiError(400, message, param="commit_every", code="invalid_value")
        check_exports(self.export)
        return self

    def body(self) -> dict[str, Any]:
        """The request with what was given, and the old form of hyperparameters folded in."""
        values = self.given()
        old = values.pop("hyperparameters", None)
        kind = self.method.type if self.method else "supervised"
        given = values.get("method", {}).get(kind, {}).get("hyperparameters", old)
        return values | {"method": method_of(kind, given or {})}


@cache
def job_fields() -> JobFields:
    """The fields of a create body by their paths."""
    return JobFields(CreateJob.model_json_schema())


def parse_create(body: Any) -> CreateJob:
    """Read a create body. ApiError (400) names the first field at fault, and what was meant."""
    try:
        return CreateJob.model_validate(body)
    except ValidationError as e:
        error = refusal(e.errors())
        known = error.param and job_fields().find(error.param, "supervised")
        if error.code == "missing_field" and known and known.choices:
            error.message += f" Wanted {' or '.join(map(repr, known.choices))}."
        raise error from e
    except ApiError as error:
        if error.code == "unknown_field" and error.param:
            kind = "dpo" if error.param.startswith(place_of_settings("dpo")) else METHODS[0]
            error.message = _what_was_meant(error.param, kind) or error.message
        raise


def _what_was_meant(param: str, kind: str) -> str | None:
    """The refusal of an unknown field that is one elsewhere, or is like one."""
    fields = job_fields()
    if other := fields.of_other_method(param, kind):
        name = param.rpartition(".")[2]
        place = f"{place_of_settings(other)}.{name}"
        return f"{param!r} is of method {other}: give method.type {other!r}, and {place!r}."
    guess = fields.guess(param, kind)
    return guess and f"Unknown field {param!r}. Did you mean {guess!r}?"


def _is_form(part: Any) -> bool:
    """Whether that part of a place is no field, but pydantic's word for one of several forms."""
    return part in NOT_FIELDS or str(part).startswith(("function-", "literal["))


def _is_word(error: Any) -> bool:
    """Whether that is what the words of a field say of its object form."""
    return any(str(part).startswith("literal[") for part in error["loc"])


def refusal(errors: Sequence[Any]) -> ApiError:
    """The 400 for what pydantic found: its first fault, by the path of the field."""
    first = next((error for error in errors if not _is_word(error)), errors[0])
    if first["type"] == "json_invalid":
        cause = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"The body is not valid JSON: {cause}.", code="invalid_json")
    where = [str(part) for part in first["loc"] if not _is_form(part)]
    param = ".".join(where) or None
    if param is None:
        message = "The body must be a JSON object, sent with content-type: application/json."
        return ApiError(400, message, code="invalid_body")
    if first["type"] == "missing":
        return ApiError(400, f"Missing field {param!r}.", param=param, code="missing_field")
    value = repr(first.get("input"))[:80]
    message = f"{param} is {value}: {first['msg'][:1].lower()}{first['msg'][1:]}."
    return ApiError(400, message, param=param, code="invalid_value")
