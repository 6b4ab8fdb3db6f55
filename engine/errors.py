"""Why a run ends without a result, besides what storage and planning raise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting within a message, so that each surface can say its own name of it.

    `name` is the field of TrainConfig; `now` what it is, where that is told too; `to` a value that
    it might be given.
    """

    name: str
    now: Any = None
    to: Any = None

    def __str__(self) -> str:
        told = self.name if self.to is None else f"{self.name} {self.to}"
        return told if self.now is None else f"{told} (now {self.now})"


class Refusal(ValueError):
    """A refusal whose message names settings apart; as text it has the names of TrainConfig."""

    def __init__(self, *words: str | Setting) -> None:
        super().__init__("".join(map(str, words)))
        self.words = words

    def in_words(self, say: Callable[[Setting], str]) -> str:
        """The message with its settings as `say` says them."""
        return "".join(part if isinstance(part, str) else say(part) for part in self.words)


class BadSetting(ValueError):
    """A setting that a run cannot have, told to the person who gave it.

    `setting` is the field of TrainConfig to blame; None where the message alone names it.
    """

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class MemoryGone(Refusal):
    """A GPU has less memory left than the run was planned to take of it."""


class NotFinite(RuntimeError):
    """Two steps in a row had a gradient that is not finite; the weights are those before them."""


class StateLost(RuntimeError):
    """A run that had committed finds no state on its volumes; it does not start over by itself."""


class SettingsChanged(ValueError):
    """The saved state was made under settings that promise other weights than those given now."""


class ExportMismatch(RuntimeError):
    """An export's files, read back, do not give the logits of the state they were made from."""
