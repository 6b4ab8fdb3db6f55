"""What the API answers of what a run has told: texts that it wrote, rows that it found."""

from typing import Literal

from pydantic import BaseModel

from .answers import Page, Seconds


class SampleText(BaseModel):
    """What the model wrote for a prompt; `expected` is what a validation row goes on with.

    `row` counts from 0. It ended by a stop token, by its length, or since a logit was no number.
    """

    source: str
    row: int | None
    prompt: str
    prompt_tokens_cut: int
    completion: str
    num_tokens: int
    ended: Literal["stop", "length", "not_finite"]
    expected: str | None


class Samples(BaseModel):
    """The texts of one evaluation."""

    id: str
    object: Literal["fine_tuning.job.samples"]
    created_at: Seconds
    step_number: int
    temperature: float
    samples: list[SampleText]


class SamplePage(Page):
    """Sample texts by evaluation, newest first; where a job has none at all, the reason."""

    data: list[Samples]
    reason: str | None


class FoundRow(BaseModel):
    """A training row, counted from 0 among those used; `losses` are its mean loss in each epoch."""

    row: int
    file: str | None
    line: int | None
    item: int | None
    losses: list[float | None]


class FoundRows(BaseModel):
    """How many rows were found, and the first of them."""

    count: int
    rows: list[FoundRow]


class RowLosses(BaseModel):
    """Rows that stand out by their loss in every epoch; `medians` are of all rows, by epoch.

    `reason` says why nothing was told, where nothing was.
    """

    object: Literal["fine_tuning.job.row_losses"]
    step_number: int | None
    num_rows: int
    medians: list[float]
    above: FoundRows
    below: FoundRows
    not_finite: FoundRows
    reason: str | None
