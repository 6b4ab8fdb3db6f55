"""What create requests may say, in the OpenAI shape with Headrace's own optional fields.

"auto" and null mean the same as leaving a field out. An unknown field is refused at any depth: a
setting that is silently dropped is worse than an error.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from pydantic import model_validator as validator

from .errors import ApiError, did_you_mean, printable

MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 2_592_000  # the range of the OpenAI API
HYPERPARAMETERS = "method.supervised.hyperparameters"


def _check_text(text: str) -> str:
    """Refuse half a surrogate pair: JSON can say it, UTF-8 cannot."""
    if printable(text) != text:
        raise ValueError("it holds a character that does not exist")
    return text


Text = Annotated[str, AfterValidator(_check_text)]
Name = Annotated[Text, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Bytes = Annotated[int, Field(ge=0, lt=1 << 63)]  # more cannot be written as JSON for everyone
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Key = Annotated[Text, StringConstraints(max_length=64)]
Value = Annotated[Text, StringConstraints(max_length=512)]
Suffix = Annotated[
    str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]*$")
]


class Strict(BaseModel):
    """A model that names the field that it does not know. `path` is its own place in the body."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    path: ClassVar[str] = ""

    @validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name in values.keys() - cls.model_fields.keys():
            param = f"{cls.path}.{name}".lstrip(".")
            guess = did_you_mean(str(name), cls.model_fields)
            message = f"Unknown field {param!r}.{guess}"
            raise ApiError(400, message, param=param, code="unknown_field")
        return {name: value for name, value in values.items() if value not in ("auto", None)}

    def given(self) -> dict[str, Any]:
        """The fields that were given a value."""
        return self.model_dump(exclude_unset=True)


class CheckpointEvery(Strict):
    """How often a checkpoint is listed: every so many steps."""

    path = f"{HYPERPARAMETERS}.checkpoint_every"

    steps: Count


class Hyperparameters(Strict):
    """The three of OpenAI, then Headrace's own. Sizes count rows, lengths tokens."""

    path = HYPERPARAMETERS

    batch_size: Annotated[int, Field(ge=1, le=256)] | None = None
    learning_rate_multiplier: Positive | None = None
    n_epochs: Annotated[int, Field(ge=1, le=50)] | None = None

    learning_rate: Annotated[float, Field(gt=0, lt=10)] | None = None
    lr_scheduler: Literal["linear", "cosine", "constant"] | None = None
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    weight_decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    max_grad_norm: Positive | None = None
    clip_mode: Literal["exact", "lagged", "per_layer", "none"] | None = None
    gradient_accumulation_steps: Count | None = None
    packing: Literal["on", "off"] | None = None
    microbatch_tokens: Count | None = None
    max_steps: Count | None = None
    max_seq_len: Count | None = None
    overlong: Literal["error", "drop", "truncate_left", "truncate_right"] | None = None
    train_on: Literal["assistant", "last_assistant", "all"] | None = None
    loss_chunk: Count | None = None
    eval_every: Count | None = None
    checkpoint_every: CheckpointEvery | None = None
    keep_last: Count | None = None


class Supervised(Strict):
    """The settings of the supervised method."""

    path = "method.supervised"

    hyperparameters: Hyperparameters = Hyperparameters()


class Method(Strict):
    """How to train. `supervised` is the one method there is."""

    path = "method"

    type: Literal["supervised"] = "supervised"
    supervised: Supervised = Supervised()

    @validator(mode="wrap")
    @classmethod
    def _refuse_other_methods(cls, values: Any, validate: Any) -> Self:
        kind = values.get("type", "supervised") if isinstance(values, dict) else "supervised"
        if kind != "supervised":
            message = f"method.type {kind!r} is not supported; wanted 'supervised'."
            raise ApiError(400, message, param="method.type", code="unsupported_method")
        return validate(values)  # type: ignore[no-any-return]


class LegacyHyperparameters(Hyperparameters):
    """The deprecated top-level form of the same settings."""

    path = "hyperparameters"


class Limits(Strict):
    """Bounds at which a job pauses instead of going on."""

    path = "limits"

    max_bytes_written: Bytes | None = None


class ResumeJob(Strict):
    """The optional body of POST /v1/fine_tuning/jobs/{id}/resume: new limits."""

    limits: Limits


class CreateJob(Strict):
    """The body of POST /v1/fine_tuning/jobs and /v1/fine_tuning/plans."""

    model: Name
    training_file: Name
    validation_file: Name | None = None
    suffix: Suffix | None = None
    seed: Annotated[int, Field(ge=0, le=2147483647)] | None = None
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    integrations: Annotated[list[Any], Field(max_length=0)] | None = None
    method: Method | None = None
    hyperparameters: LegacyHyperparameters | None = None

    dry_run: bool = False
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    device_bytes: Bytes | None = None
    host_bytes: Bytes | None = None
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    state_format: Literal["exact"] | None = None
    deterministic: bool | None = None
    commit_every: Count | None = None
    keep_commits: Annotated[int, Field(ge=0, le=16)] | None = None
    limits: Limits | None = None

    @validator(mode="after")
    def _agree(self) -> Self:
        old, new = self.hyperparameters, self.method
        if old and new and old.given() != new.supervised.hyperparameters.given():
            raise ApiError(
                400,
                "hyperparameters and method.supervised.hyperparameters differ; give the latter.",
                param="hyperparameters",
                code="conflicting_hyperparameters",
            )
        return self

    def body(self) -> dict[str, Any]:
        """The request with what was given, and the old form of hyperparameters folded in."""
        values = self.given()
        old = values.pop("hyperparameters", None)
        hyperparameters = values.get("method", {}).get("supervised", {}).get("hyperparameters", old)
        supervised = {"hyperparameters": hyperparameters or {}}
        return values | {"method": {"type": "supervised", "supervised": supervised}}


class ExpiresAfter(Strict):
    """When a file goes by itself, in seconds after it came."""

    path = "expires_after"

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)]


class CreateUpload(Strict):
    """The body of POST /v1/uploads. `mime_type` is for clients; what counts is the content."""

    bytes: Annotated[int, Field(ge=1, lt=1 << 63)]
    filename: Annotated[Name, StringConstraints(max_length=255)]
    mime_type: Name
    purpose: Literal["fine-tune"]
    expires_after: ExpiresAfter | None = None


class CompleteUpload(Strict):
    """The body of POST /v1/uploads/{id}/complete: the parts in the order of the file."""

    part_ids: Annotated[list[Name], Field(min_length=1)]
    md5: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")] | None = None


def parse_create(body: Any) -> CreateJob:
    """Read a create body. ApiError (400) names the first field at fault."""
    try:
        return CreateJob.model_validate(body)
    except ValidationError as e:
        raise refusal(e.errors()) from e


def refusal(errors: Sequence[Any]) -> ApiError:
    """The 400 for what pydantic found: its first fault, by the path of the field."""
    first = errors[0]
    if first["type"] == "json_invalid":
        cause = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"The body is not valid JSON: {cause}.", code="invalid_json")
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    param = ".".join(where) or None
    if param is None:
        message = "The body must be a JSON object, sent with content-type: application/json."
        return ApiError(400, message, code="invalid_body")
    if first["type"] == "missing":
        return ApiError(400, f"Missing field {param!r}.", param=param, code="missing_field")
    value = repr(first.get("input"))[:80]
    message = f"{param} is {value}: {first['msg'][:1].lower()}{first['msg'][1:]}."
    return ApiError(400, message, param=param, code="invalid_value")
