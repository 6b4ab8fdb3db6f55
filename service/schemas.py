"""What create requests may say, in the OpenAI shape with Headrace's own optional fields.

"auto" and null mean the same as leaving a field out. An unknown field is refused at any depth: a
setting that is silently dropped is worse than an error.
"""

from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError
from pydantic import model_validator as validator

from headrace.engine import StrategyName

from .errors import ApiError
from .hyperparameter_fields import DpoHyperparameters, Hyperparameters, LegacyHyperparameters
from .job_fields import JobFields
from .job_parts import (
    CommitEvery,
    Dataset,
    Export,
    Integration,
    Limits,
    check_durability,
    check_exports,
)
from .method import LEGACY, METHODS, method_of, place_of_settings
from .refusals import refusal
from .run_settings import RUN_DEFAULTS
from .strict import Bytes, Count, Name, Seed, Strict, Text, Whole, refuse, says

MAX_PAIRS = 16  # of metadata, as in the OpenAI API
Key = Annotated[Text, StringConstraints(max_length=64)]
Value = Annotated[Text, StringConstraints(max_length=512)]
Suffix = Annotated[
    str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]*$")
]


class Supervised(Strict):
    """The settings of the supervised method."""

    hyperparameters: Hyperparameters = says(
        "Hyperparameters", "How to train on answers.", Hyperparameters()
    )


class Dpo(Strict):
    """The settings of direct preference optimization."""

    hyperparameters: DpoHyperparameters = says(
        "Hyperparameters", "How to train on preferences.", DpoHyperparameters()
    )


class Method(Strict):
    """How to train: on answers, or on preferences between two of them."""

    type: Literal["supervised", "dpo"] = says(
        "Method", "On answers (supervised), or on preferences (dpo).", "supervised"
    )
    supervised: Supervised = says(
        "Supervised", "Its settings, where that is the type.", Supervised()
    )
    dpo: Dpo = says("Dpo", "Its settings, where that is the type.", Dpo())

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Those of its type."""
        return self.dpo.hyperparameters if self.type == "dpo" else self.supervised.hyperparameters

    @validator(mode="wrap")
    @classmethod
    def _refuse_other_methods(cls, values: Any, validate: Any) -> Self:
        if not isinstance(values, dict):
            return validate(values)  # type: ignore[no-any-return]
        given = {name: one for name, one in values.items() if not cls._is_open(name, one)}
        kind = given.get("type", "supervised")
        if kind not in ("supervised", "dpo"):
            text = f"{{param}} {kind!r:.80} is not supported; wanted 'supervised' or 'dpo'."
            raise refuse(text, field="type", code="unsupported_method")
        other = "supervised" if kind == "dpo" else "dpo"
        if other in given:
            text = f"{{param}} is given, but method.type is {kind!r}; give one method."
            if "type" not in given:
                text = f"{{param}} is given without its type; give method.type {other!r}."
            raise refuse(text, field=other)
        return validate(values)  # type: ignore[no-any-return]


class ResumeJob(Strict):
    """The optional body of POST /v1/fine_tuning/jobs/{id}/resume: new limits."""

    limits: Limits = Field(
        title="Limits", description="They replace those that the job had, all of them."
    )


class CreateJob(Strict):
    """The body of POST /v1/fine_tuning/jobs and /v1/fine_tuning/plans.

    Every field that is left out, null or "auto" is settled by the daemon, and the job echoes what
    it became. An unknown field is refused, at any depth.
    """

    not_here = {"chat_template": "the model's own is used"}
    defaults = RUN_DEFAULTS

    model: Name = Field(
        title="Model",
        description="What to train: a folder of the models directory, a model that a job has "
        "made, or a checkpoint, by its id in GET /v1/models or by the checkpoint's own.",
    )
    training_file: Name = Field(
        title="Training rows", description="The id of an uploaded file of purpose fine-tune."
    )
    validation_file: Name | None = says(
        "Validation rows",
        "The id of an uploaded file whose rows are not trained on, for evaluations. auto: none.",
    )
    suffix: Suffix | None = says("Suffix", "A word in the name of the result. auto: none.")
    seed: Seed | None = says(
        "Seed", "The same seed gives the same bits. auto: drawn, and echoed in the job."
    )
    metadata: Annotated[dict[Key, Value], Field(max_length=MAX_PAIRS)] | None = says(
        "Metadata", "Words of your own, by which jobs can be listed. auto: none."
    )
    integrations: Annotated[list[Integration], Field(max_length=1)] | None = says(
        "Trackers",
        'Programs that draw the job\'s numbers, such as [{"type": "tensorboard"}]. auto: none.',
    )
    method: Method | None = says(
        "Method", "How to train. auto: supervised, with every hyperparameter left open."
    )
    hyperparameters: LegacyHyperparameters | None = says(
        "Hyperparameters",
        "Deprecated: the hyperparameters of the supervised method. Where method has them too, "
        "both must be the same.",
    )
    dry_run: bool = says("Dry run", "Answer the plan alone and make no job.", False)
    priority: Annotated[int, Whole(-1000, 1000)] = says(
        "Priority", "Higher runs earlier; among equals the older job.", 0
    )
    device_bytes: Bytes | None = says(
        "Device memory at most",
        "Bytes of the device's memory that the job may take. auto: what the daemon gives a job.",
    )
    host_bytes: Bytes | None = says(
        "Host memory at most",
        "Bytes of host memory that the job may take. What does not fit beside the device waits on "
        "the volumes: state between steps and, where they must, inputs of layers until their "
        "backward pass. The plan counts both in the room demanded and in what is written. auto: "
        "what the daemon gives a job.",
    )
    compute_dtype: Literal["float32", "bfloat16"] | None = says(
        "Compute in",
        "The dtype of the layers' arithmetic. auto: bfloat16 on a GPU, float32 on a CPU.",
    )
    state_format: Literal["exact", "q8", "economy", "sr_bf16", "sr_q8"] | None = says(
        "State format",
        "How weights and moments are kept between steps. exact: fp32, 12 bytes a parameter; q8 "
        "(economy is the same): 8-bit moments and remainder; sr_bf16 and sr_q8: bf16 weights "
        "with stochastic rounding, the latter with 8-bit moments.",
    )
    deterministic: bool | None = says("Deterministic", "The same bits on every run.")
    strategy: StrategyName | None = says(
        "Strategy",
        "A published system's way to place state and order work, where the rest of the request "
        "leaves it open. It changes no bit of the result. auto: the placement with the shortest "
        "predicted step.",
    )
    commit_every: Count | None = says(
        "Commit every",
        "Steps between commits of the training state, 1 unless durability says otherwise. Give "
        "one of both.",
    )
    durability: Annotated[
        Literal["step", "none"] | CommitEvery | None, BeforeValidator(check_durability)
    ] = says(
        "Durability",
        'When the training state is committed, such as {"minutes": 10}. step: after every step; '
        "none: only where the run ends or is stopped.",
    )
    keep_commits: Annotated[int, Whole(0, 16)] | None = says(
        "Commits kept",
        "Resumable commits of checkpoints that stay besides the live one. The plan counts their "
        "room.",
    )
    limits: Limits | None = says(
        "Limits", "Bounds at which the job pauses instead of going on. auto: none."
    )
    export: Annotated[list[Export], Field(min_length=1, max_length=2)] | None = says(
        "Export",
        'What is made of the trained weights, such as [{"format": "gguf", "dtype": "q8_0"}]. '
        "auto: the adapters where some are trained, else a Hugging Face directory, in the model's "
        "own dtype.",
    )
    resume_from: Name | None = says(
        "Resume from",
        "A checkpoint, or a job that has ended. Of a checkpoint or a job that succeeded the "
        "weights are taken. A failed job's training state is gone on with, under its own settings; "
        "so is a cancelled one's, as long as it is there. auto: a fresh start from model.",
    )
    dataset: Dataset | None = says("Data set", "How the rows of the files are to be read.")

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

    @property
    def place_of_hyperparameters(self) -> str:
        """The path under which the request has its hyperparameters."""
        if self.hyperparameters is not None and self.method is None:
            return LEGACY
        return place_of_settings(self.method.type if self.method else METHODS[0])

    def body(self) -> dict[str, Any]:
        """The request with what was given, and the old form of hyperparameters folded in."""
        values = self.given()
        old = values.pop("hyperparameters", None)
        kind = self.method.type if self.method else "supervised"
        given = values.get("method", {}).get(kind, {}).get("hyperparameters", old)
        return values | {"method": method_of(kind, given or {})}


@cache
def create_schema() -> dict[str, Any]:
    """The JSON schema of create bodies, made once: it takes longer than a page may. Only read."""
    return CreateJob.model_json_schema()


@cache
def job_fields() -> JobFields:
    """The fields of a create body by their paths."""
    return JobFields(create_schema())


def parse_create(body: Any) -> CreateJob:
    """Read a create body. ApiError (400) names the first field at fault, and what was meant."""
    try:
        return CreateJob.model_validate(body)
    except ValidationError as e:
        raise what_was_meant(refusal(e.errors())) from e


def what_was_meant(error: ApiError) -> ApiError:
    """The same refusal of a create body; of an unknown field, with the path that was meant."""
    fields, param = job_fields(), error.param or ""
    known = fields.find(param, METHODS[0])
    if error.code == "missing_field" and known and known.choices:
        error.message += f" Wanted {' or '.join(map(repr, known.choices))}."
    if error.code != "unknown_field":
        return error
    here = (one for one in METHODS if param.startswith(place_of_settings(one)))
    kind = next(here, METHODS[0])
    if other := fields.of_other_method(param, kind):
        place = f"{place_of_settings(other)}.{param.rpartition('.')[2]}"
        error.message = (
            f"{param!r} is of method {other}: give method.type {other!r}, and {place!r}."
        )
    elif guess := fields.guess(param, kind):
        error.message = f"Unknown field {param!r}. Did you mean {guess!r}?"
    return error
