"""What a prepare child is asked, and how it says no. Loads nothing of what preparing takes."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.engine import RunEvent

from .asked_as import message_of
from .full_disk import is_full
from .json_file import write_json
from .results import error_code

if TYPE_CHECKING:
    from headrace.engine import DataReport

Emit = Callable[[RunEvent], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest:
    """What to prepare. Paths are absolute; `config` holds the fields of TrainConfig known so far.

    `box` is what the machine offers, as the fields of Box. `after_seq` is the newest event of the
    job that its reader holds.
    """

    job_dir: str
    cache_dir: str
    model_dir: str
    training_file: str
    validation_file: str | None
    max_seq_len: int
    overlong: str
    config: dict[str, Any]
    box: dict[str, Any]
    after_seq: int = 0
    train_on: str = "assistant"
    columns: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of files: what their user calls each

    def named(self, text: str) -> str:
        """The text with the files called as their user does."""
        for stored, name in self.names.items():
            text = text.replace(stored, name)
        return text

    def write(self) -> None:
        """Leave it where the child finds it, and take away what an earlier try has left."""
        for name in ("prepared.json", "refusal.json"):
            (Path(self.job_dir) / name).unlink(missing_ok=True)
        write_json(Path(self.job_dir) / "prepare.json", asdict(self))

    @classmethod
    def read(cls, job_dir: Path) -> Self:
        """Read what `write` left."""
        return cls(**json.loads((job_dir / "prepare.json").read_text(encoding="utf-8")))


class Refused(Exception):
    """The job cannot run, for a reason that its user can mend; `param` is the field at fault, and
    `report` what was found in its rows, where that is the reason."""

    def __init__(
        self, error: Exception, param: str | None, report: "DataReport | None" = None
    ) -> None:
        super().__init__(message_of(error))
        self.code = "no_space" if is_full(error) else error_code(type(error).__name__)
        self.param = param
        self.report = report
