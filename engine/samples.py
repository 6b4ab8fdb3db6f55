"""Sample texts at evaluations: which prompts, what the model writes, and what people are shown.

Trouble with texts (a tokenizer, a template) becomes a warning and never ends a run.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import TrainConfig
from .data import TokenDataset
from .example import NOT_TRAINED, ChatTokenizer, RenderProblem
from .generation import Drawn, Written, generate, greedy
from .labels import prompt_ids
from .model_files import ModelError
from .mover import Mover
from .reminder import Reminder
from .report import Emit, RunEvent
from .tokenizer import load_tokenizer
from .workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a text begins with: ids, where they are from, and what the data go on with.

    `cut` counts tokens that were left out at its beginning, since it was too long.
    """

    ids: Sequence[int]
    source: str
    row: int | None = None
    wanted: Sequence[int] = ()
    cut: int = 0


class Sampler:
    """Writes the samples of a run."""

    def __init__(
        self,
        config: TrainConfig,
        tokenizer: ChatTokenizer,
        prompts: Sequence[Prompt],
        stops: Collection[int],
        emit: Emit,
    ) -> None:
        """`stops` are the tokens that end a text."""
        self._config = config
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._stops = stops
        self._emit = emit

    def tell(self, work: Workspace, mover: Mover, step: int) -> None:
        """Write a text for every prompt with the present weights, and say so."""
        config = self._config
        drawn = config.sample_temperature > 0
        texts = generate(
            work,
            mover,
            [prompt.ids for prompt in self._prompts],
            num_tokens=config.sample_tokens,
            stops=self._stops,
            choose=Drawn(config.sample_temperature, config.sample_seed) if drawn else greedy,
            on_pass=Reminder(self._emit, "writing sample texts", step),
        )
        try:
            told = [self._told(*pair) for pair in zip(self._prompts, texts, strict=True)]
        except Exception as error:  # the tokenizer's part in Rust raises bare Exception
            message = f"the samples cannot be read: the tokenizer does not decode them: {error}"
            self._emit(RunEvent(type="message", level="warn", message=message, step=step))
            return
        count = f"{len(told)} sample text{'s' if len(told) > 1 else ''}"
        self._emit(
            RunEvent(
                type="samples",
                message=f"{count} written by the weights of step {step}",
                step=step,
                data={"samples": told, "temperature": config.sample_temperature},
            )
        )

    def _told(self, prompt: Prompt, text: Written) -> dict[str, Any]:
        ended = "stop" if text.ended else "length" if text.is_finite else "not_finite"
        said = text.completion[:-1] if text.ended else text.completion
        wanted = list(prompt.wanted)
        if wanted and wanted[-1] in self._stops:
            wanted.pop()
        return {
            "source": prompt.source,
            "row": prompt.row,
            "prompt": self._decode(prompt.ids),
            "prompt_tokens_cut": prompt.cut,
            "completion": self._decode(said),
            "num_tokens": len(text.completion),
            "ended": ended,
            "expected": self._decode(wanted) if wanted else None,
        }

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


def open_sampler(
    config: TrainConfig, eval_data: TokenDataset | None, longest: int, emit: Emit
) -> Sampler | None:
    """The sampler that the config asks for; None when it asks for none, or, with a warning, when
    the model's tokenizer cannot do it.

    Prompts keep their last `sample_prompt_tokens`, and no more than the `longest` row has.
    """
    if not config.num_samples:
        return None
    folder = Path(config.assets or config.model)
    limit = min(config.sample_prompt_tokens, longest)
    try:
        tokenizer: ChatTokenizer = load_tokenizer(folder)
        asked = [
            _cut(Prompt(ids=prompt_ids(tokenizer, text), source=f"prompt {i + 1}"), limit)
            for i, text in enumerate(config.sample_prompts)
        ]
        ends = _end_tokens(folder)
    except (ModelError, RenderProblem) as error:
        message = f"there will be no sample texts: {error}"
        emit(RunEvent(type="message", level="warn", message=message))
        return None
    of_rows = [] if eval_data is None else _row_prompts(eval_data, config.sample_rows, limit)
    prompts = [prompt for prompt in (*asked, *of_rows) if prompt.ids]
    if not prompts:
        message = "there will be no sample texts: no prompt has a token before what is trained"
        emit(RunEvent(type="message", level="warn", message=message))
        return None
    stops = {*ends, *(prompt.wanted[-1] for prompt in of_rows if prompt.wanted)}
    if tokenizer.eos_token_id is not None:
        stops.add(tokenizer.eos_token_id)
    return Sampler(config, tokenizer, prompts, stops, emit)


def _row_prompts(data: TokenDataset, count: int, limit: int) -> list[Prompt]:
    """Prompts of rows that lie evenly in the data set: what comes before their first trained run.

    Of a row that is trained from its beginning it is the first half; of a preference it is what
    comes before the chosen answer.
    """
    count = min(count, data.num_rows)
    found = []
    for row in (i * data.num_rows // count for i in range(count)):
        ids, labels = (values.tolist() for values in data.answers(row)[0])
        trained = [label != NOT_TRAINED for label in labels]
        start = trained.index(True) or len(ids) // 2
        stop = next((i for i in range(start, len(ids)) if not trained[i]), len(ids))
        source = f"validation row {row + 1}"
        prompt = Prompt(ids=ids[:start], source=source, row=row, wanted=ids[start:stop])
        found.append(_cut(prompt, limit))
    return found


def _cut(prompt: Prompt, limit: int) -> Prompt:
    """The prompt without the beginning that is too much."""
    cut = max(0, len(prompt.ids) - limit)
    return Prompt(
        ids=prompt.ids[cut:],
        source=prompt.source,
        row=prompt.row,
        wanted=prompt.wanted,
        cut=cut,
    )


def _end_tokens(folder: Path) -> list[int]:
    """What ends a text by the model's own generation_config.json, where there is one; ModelError
    for one that cannot be read."""
    path = folder / "generation_config.json"
    if not path.exists():
        return []
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    found = config.get("eos_token_id") if isinstance(config, dict) else None
    ends = found if isinstance(found, list) else [found]
    return [end for end in ends if type(end) is int]
