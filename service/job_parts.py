"""Parts of a create request that are objects of their own."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field
from pydantic import model_validator as validator

from headrace.engine import COLUMN_KEYS, BadSetting, check_columns

from .errors import ApiError
from .hyperparameters import ADAPTER_DEFAULTS
from .strict import (
    Bytes,
    Count,
    Name,
    NotNegative,
    Patterns,
    Positive,
    Strict,
    Text,
    Whole,
    refuse,
    says,
)


class Every(Strict):
    """How often something is done: after so many steps, or minutes, or whichever comes first."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    steps: Count | None = says("Checkpoint every", "So many steps.")
    minutes: Positive | None = says("Checkpoint by the clock", "Every so many minutes.")

    @validator(mode="after")
    def _says_something(self) -> Self:
        if self.steps is None and self.minutes is None:
            text = "{param} says neither steps nor minutes; give one of them, or both."
            raise refuse(text, code="missing_field")
        return self


class CommitEvery(Every):
    """How often the training state is made durable."""

    steps: Count | None = says("Commit every", "So many steps.")
    minutes: Positive | None = says("Commit by the clock", "Every so many minutes.")


def _check_columns(columns: dict[str, str]) -> dict[str, str]:
    try:
        check_columns(columns)
    except BadSetting as e:
        raise refuse(f"{e}.") from e
    return columns


class Dataset(Strict):
    """How the rows of the files are to be read."""

    not_here = {"format": "the format of rows is found row by row"}

    columns: (
        Annotated[
            dict[Text, Name],
            AfterValidator(_check_columns),
            Field(json_schema_extra={"propertyNames": {"enum": sorted(COLUMN_KEYS)}}),
        ]
        | None
    ) = says(
        "Columns",
        'Names that rows give to the keys of formats, such as {"prompt": "question"}. No two keys '
        "may have the same column.",
    )


class EarlyStopping(Strict):
    """End after `patience` evaluations whose loss was not lower by more than `min_delta`."""

    patience: Count = Field(
        title="Stop early after", description="So many evaluations without a better loss."
    )
    min_delta: NotNegative = says("A better loss is", "Lower than the best by more than this.", 0.0)


def _check_dropout(share: float) -> float:
    if share:
        text = (
            f"{{param}} is {share}; layers are computed twice, and what was dropped would not be "
            "the same: leave it out, or 0."
        )
        raise refuse(text, code="unsupported_field")
    return share


class Adapter(Strict):
    """Small matrices that are trained beside the frozen model: LoRA. With `qlora` the frozen
    matrices are kept in few bits, those of `base`.
    """

    defaults = ADAPTER_DEFAULTS

    type: Literal["lora", "qlora"] = Field(
        title="Adapters",
        description="Train small matrices beside the model; qlora: over frozen ones of few bits.",
    )
    rank: Annotated[int, Whole(1, 4096)] | None = says(
        "Rank of adapters", "Columns of the one matrix and rows of the other."
    )
    alpha: Positive | None = says(
        "Alpha of adapters",
        "What adapters add is scaled by alpha over the rank. auto: twice the rank.",
    )
    rslora: bool | None = says(
        "Scale by the root of the rank", "rsLoRA: alpha over the square root of the rank, instead."
    )
    dropout: (
        Annotated[float, AfterValidator(_check_dropout), Field(json_schema_extra={"const": 0})]
        | None
    ) = says("Dropout of adapters", "There is none: 0. Layers are computed twice, and must agree.")
    target_modules: Name | Patterns | None = says(
        "Adapted projections",
        "all-linear, a regular expression of at most 500 characters, or a list of names such as "
        "q_proj. An expression is held against whole names of modules, a name against their last "
        "part.",
    )
    base: Literal["nf4", "int8"] | None = says(
        "Frozen weights as", "Of qlora: the code of the frozen matrices. auto: nf4."
    )

    @validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.base and self.type == "lora":
            text = f"{{param}} is {self.base!r}, which is of type qlora; type is 'lora'."
            raise refuse(text, field="base")
        return self


class Limits(Strict):
    """Bounds at which a job pauses instead of going on.

    `max_wear_share` is known before: a job that would take more of the drives' rated life is
    refused.
    """

    max_hours: Positive | None = says(
        "Run at most", "Hours of training, then the job pauses. auto: no limit."
    )
    max_bytes_written: Annotated[int, Whole(1, (1 << 63) - 1)] | None = says(
        "Write at most",
        "Bytes to the volumes over the job's life, then it pauses. auto: no limit.",
    )
    min_free_disk: Bytes | None = says(
        "Keep free",
        "Bytes on each drive of the volumes and the data directory; with less the job pauses. "
        "auto: no limit.",
    )
    max_wear_share: Positive | None = says(
        "Wear at most",
        "Share of the drives' rated life that the job may take, such as 0.01. A job that would "
        "take more is refused. auto: no limit.",
    )


class Integration(Strict):
    """What draws the job's numbers elsewhere."""

    type: Literal["tensorboard"] = Field(
        title="Tracker", description="tensorboard: event files in the job's folder."
    )


class Export(Strict):
    """What becomes of the trained weights.

    What was written is read back and compared with what was trained, unless `check` is false.
    """

    format: Literal["hf", "adapter", "gguf"] | None = says(
        "Format",
        "hf: a Hugging Face directory; adapter: the directory that peft loads; gguf: a file of "
        "the whole model beside either of them. auto: adapter where adapters are trained, else hf.",
    )
    dtype: Literal["float32", "bfloat16", "float16", "q8_0"] | None = says(
        "Dtype", "Of the weights; q8_0 is for gguf alone. auto: the model's own."
    )
    check: bool | None = says("Check", "Read the files back and compare logits. auto: true.")

    @validator(mode="after")
    def _has_that_dtype(self) -> Self:
        if self.dtype == "q8_0" and self.format != "gguf":
            text = f"{{param}} is 'q8_0', which is of format gguf; format is {self.format or 'hf'}."
            raise refuse(text, field="dtype")
        return self


def check_exports(exports: list[Export] | None) -> None:
    """ApiError when more than one is the model itself, or more than one the GGUF file beside it."""
    formats = [one.format or "hf" for one in exports or []]
    if formats.count("gguf") > 1 or len(formats) - formats.count("gguf") > 1:
        message = (
            f"export has {', '.join(formats)}; wanted one of hf and adapter, and one gguf beside it"
        )
        raise ApiError(400, f"{message}.", param="export", code="invalid_value")


def check_durability(value: Any) -> Any:
    """Refuse what is neither a word for it nor an object, before the object is looked at."""
    if value is None or value in ("step", "none") or isinstance(value, dict):
        return value
    wanted = "wanted 'step', 'none', {\"steps\": N} or {\"minutes\": M}"
    raise refuse(f"{{param}} is {value!r:.80}; {wanted}.")
