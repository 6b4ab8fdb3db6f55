"""Parts of a create request that are objects of their own."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field
from pydantic import model_validator as validator

from headrace.engine import check_columns

from .errors import ApiError
from .strict import HYPERPARAMETERS, Bytes, Count, Name, Positive, Strict, Text


class Every(Strict):
    """How often something is done: after so many steps, or minutes, or whichever comes first."""

    path = f"{HYPERPARAMETERS}.checkpoint_every"

    steps: Count | None = None
    minutes: Positive | None = None

    @validator(mode="after")
    def _says_something(self) -> Self:
        if self.steps is None and self.minutes is None:
            message = f"{self.path} says neither steps nor minutes."
            raise ApiError(400, message, param=self.path, code="missing_field")
        return self


class CommitEvery(Every):
    """How often the training state is made durable."""

    path = "durability"


class Dataset(Strict):
    """How the rows of the files are to be read."""

    path = "dataset"
    not_here = {"format": "the format of rows is found row by row"}

    columns: dict[Text, Name] | None = None

    @validator(mode="after")
    def _names_keys(self) -> Self:
        try:
            check_columns(self.columns or {})
        except ValueError as e:
            param = "dataset.columns"
            raise ApiError(400, f"{e}.", param=param, code="invalid_value") from e
        return self


class EarlyStopping(Strict):
    """End after `patience` evaluations whose loss was not lower by more than `min_delta`."""

    path = f"{HYPERPARAMETERS}.early_stopping"

    patience: Count
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class Adapter(Strict):
    """Small matrices that are trained beside the frozen model: LoRA. With `qlora` the frozen
    matrices are kept in few bits, those of `base`.
    """

    path = f"{HYPERPARAMETERS}.adapter"

    type: Literal["lora", "qlora"]
    rank: Annotated[int, Field(ge=1, le=4096)] | None = None
    alpha: Positive | None = None
    rslora: bool | None = None
    dropout: float | None = None
    target_modules: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    base: Literal["nf4", "int8"] | None = None

    @validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.dropout:
            message = (
                f"{self.path}.dropout is {self.dropout}; layers are computed twice, and what was "
                "dropped would not be the same: leave it out, or 0."
            )
            raise ApiError(400, message, param=f"{self.path}.dropout", code="unsupported_field")
        if self.base and self.type == "lora":
            message = f"{self.path}.base is of type qlora."
            raise ApiError(400, message, param=f"{self.path}.base", code="invalid_value")
        return self


class Limits(Strict):
    """Bounds at which a job pauses instead of going on.

    `max_wear_share` is known before: a job that would take more of the drives' rated life is
    refused.
    """

    path = "limits"

    max_hours: Positive | None = None
    max_bytes_written: Bytes | None = None
    min_free_disk: Bytes | None = None
    max_wear_share: Positive | None = None


class Integration(Strict):
    """What draws the job's numbers elsewhere: `tensorboard` writes event files in its folder."""

    path = "integrations"

    type: Literal["tensorboard"]


class Export(Strict):
    """What becomes of the trained weights: a Hugging Face directory (`hf`), in the model's own
    dtype unless another is named; or, of adapters, the directory that peft loads (`adapter`); and
    beside either of them one GGUF file of the whole model (`gguf`), whose matrices may be `q8_0`.

    What was written is read back and compared with what was trained, unless `check` is false.
    """

    path = "export"

    format: Literal["hf", "adapter", "gguf"] | None = None
    dtype: Literal["float32", "bfloat16", "float16", "q8_0"] | None = None
    check: bool | None = None

    @validator(mode="after")
    def _has_that_dtype(self) -> Self:
        if self.dtype == "q8_0" and self.format != "gguf":
            message = "export.dtype q8_0 is of format gguf."
            raise ApiError(400, message, param=f"{self.path}.dtype", code="invalid_value")
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
    message = f"durability is {value!r:.80}; wanted 'step', 'none', or {{steps}} or {{minutes}}."
    raise ApiError(400, message, param="durability", code="invalid_value")
