"""What rendering a row needs, and what it ends in: tokens with labels, or the reason why not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

NOT_TRAINED = -100


class ChatTokenizer(Protocol):
    """What is needed of a transformers tokenizer; it must be a fast one, which knows offsets."""

    chat_template: Any
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_id: int | None
    all_special_ids: list[int]
    all_special_tokens: list[str]
    added_tokens_decoder: dict[int, Any]

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render messages to text, or to ids with a mask of the marked turns."""

    def __hash__(self) -> int:
        """By identity."""

    def __call__(self, text: str, **kwargs: Any) -> Any:
        """Encode text to `input_ids` and `offset_mapping`."""

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        """The text of ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Token ids of a whole conversation; `labels` equal them where trained, else are -100.

    `notes` say what the template left out that training can do without: a code to count by, and
    words.
    """

    ids: list[int]
    labels: list[int]
    notes: tuple[tuple[str, str], ...] = field(default=(), compare=False)


class RenderProblem(ValueError):
    """A conversation that the model's template or tokenizer cannot carry unchanged."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
