"""The shape of what the API tells of a job's exports, for its description."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class ExportFile(BaseModel):
    """One file of an export."""

    name: str
    bytes: int
    sha256: str


class ExportCheck(BaseModel):
    """Logits computed from the files, beside those of the state that was trained."""

    matches: bool
    num_prompts: int
    num_positions: int
    max_abs_diff: float = Field(description="The largest difference of a logit.")
    rounding_diff: float = Field(description="What of that the export's dtype does by itself.")
    unexplained_diff: float = Field(description="What it does not; at most the tolerance.")
    tolerance: float
    largest_logit: float
    argmax_agreement: float = Field(description="Share of positions with the same likeliest token.")
    seconds: float


class ExportReport(BaseModel):
    """What an export holds, and what was found when it was read back."""

    format: Literal["hf", "adapter", "gguf"]
    dtype: str
    step: int
    path: str = Field(description="The directory on the daemon's machine.")
    check: ExportCheck | None = Field(description="None where the job wanted no check.")
    files: list[ExportFile]


class ExportReports(BaseModel):
    """Every export of a job."""

    object: Literal["list"]
    data: list[ExportReport]


class BundleFile(BaseModel):
    """A file of rows, by its hash."""

    param: Literal["training_file", "validation_file"]
    id: str
    filename: str
    bytes: int
    sha256: str
    report: dict[str, Any] = Field(description="The data report, without the rows it shows.")


class Bundle(BaseModel):
    """All that it takes to make a job's weights again, and to know whether they are the same."""

    object: Literal["fine_tuning.job.bundle"]
    format: int
    job: dict[str, Any]
    request: dict[str, Any] = Field(description="A create body with nothing left open.")
    config: dict[str, Any]
    numerics_key: dict[str, Any] = Field(description="The settings that decide every bit.")
    surroundings: dict[str, Any] | None = Field(
        description="Hardware and versions; None before it ran."
    )
    plan: dict[str, Any]
    data: list[BundleFile]
    curve: dict[str, Any]
    trained_tokens: int | None
    exports: list[ExportReport]
