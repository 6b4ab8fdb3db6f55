"""The shape of what the API tells of a job's exports, for its description."""

from typing import Literal

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
