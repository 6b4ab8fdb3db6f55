"""What a model writes while it streams is what transformers writes with it in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from datasets import write_dataset
from headrace.engine import RowLengths, TokenDataset, read_model_spec
from headrace.engine.account import JobSize
from headrace.engine.generation import Choose, Drawn, Written, generate, greedy
from headrace.engine.methods import method_spec
from headrace.engine.mover import Mover
from headrace.engine.run import open_or_import, plan_run, settle_run
from headrace.engine.workspace import Workspace
from headrace.storage import VolumeConfig
from runs import STORE, Run
from tiny import make_tiny_llama
from tiny_families import CASES, write_family

# Of peft about transformers, and of the compiler about torch.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

PROMPTS = [[5, 9, 300, 17], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 7], [333]]
TOKENS = 14  # more than a window, and beyond where longrope turns
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


@contextmanager
def open_run(run: Run) -> Iterator[tuple[Workspace, Mover]]:
    """The memory of a run, over its last commit or the untrained model."""
    config = run.config
    spec = method_spec(read_model_spec(config.model), config)
    lengths = RowLengths(training=TokenDataset.open(config.dataset).lengths)
    volumes = [VolumeConfig.parse(text) for text in config.volumes]
    config = settle_run(config, lengths, None, print)
    plan, _ = plan_run(spec, config, lengths, JobSize(), resumes=False)
    with (
        open_or_import(spec, config, plan, volumes, STORE, print) as store,
        Workspace(spec, config, plan, store) as work,
    ):
        mover = Mover(work)
        mover.load_homes()
        yield work, mover


def write(
    run: Run,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    num_tokens: int = TOKENS,
    stops: Sequence[int] = (),
    choose: Choose = greedy,
) -> list[Written]:
    with open_run(run) as (work, mover):
        return generate(work, mover, prompts, num_tokens=num_tokens, stops=stops, choose=choose)


def by_transformers(model: Any, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
    """Each prompt by itself, with transformers' own cache."""
    model.generation_config.eos_token_id = None
    return [
        model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=TOKENS,
            do_sample=False,
        )[0].tolist()
        for prompt in prompts
    ]


def load(model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [24, 9, 17], vocab=384)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model", tied=False, seed=3, max_position_embeddings=24)


@pytest.mark.parametrize("case", CASES)
def test_every_family_writes_what_transformers_writes(
    tmp_path: Path, dataset: Path, case: str
) -> None:
    model = write_family(tmp_path / "model", case)
    texts = write(Run(tmp_path, model, dataset))
    assert [text.ids for text in texts] == by_transformers(load(model))


@pytest.mark.parametrize("kind", ROPES)
def test_every_kind_of_rope_writes_what_transformers_writes(
    tmp_path: Path, dataset: Path, kind: str
) -> None:
    model = make_tiny_llama(
        tmp_path / "model", tied=True, seed=3,
        rope_scaling=ROPES[kind], max_position_embeddings=16 if kind == "dynamic" else 64,
    )  # fmt: skip
    # Beyond its positions no text goes on, so the one that stretches is made to have more.
    run = Run(tmp_path, model, dataset)
    with open_run(run) as (work, mover):
        object.__setattr__(work.spec, "max_positions", 64)
        texts = generate(work, mover, PROMPTS, num_tokens=TOKENS, stops=(), choose=greedy)
    assert [text.ids for text in texts] == by_transformers(load(model))


def test_a_trained_adapter_is_in_what_is_written(
    tmp_path: Path, llama: Path, dataset: Path
) -> None:
    run = Run(tmp_path, llama, dataset, method="lora", learning_rate=0.05, lora_rank=4)
    result = run.go()
    base = load(llama)
    before = by_transformers(base, PROMPTS[:1])
    expected = by_transformers(PeftModel.from_pretrained(base, str(result.export_dir)), PROMPTS[:1])
    assert before != expected
    assert [text.ids for text in write(run, PROMPTS[:1])] == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"state_tier": "host"},
        {"state_tier": "device"},
        {"num_slots": 2},
        {"packing": "off"},
        {"compile": "static"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_placement_and_compilation_change_no_text(
    tmp_path: Path, llama: Path, dataset: Path, settings: dict[str, Any]
) -> None:
    assert (
        write(Run(tmp_path, llama, dataset, **settings), PROMPTS[:1])[0].ids
        == (by_transformers(load(llama), PROMPTS[:1])[0])
    )


def test_a_coded_base_in_half_precision_writes(tmp_path: Path, llama: Path, dataset: Path) -> None:
    run = Run(
        tmp_path, llama, dataset, method="lora", frozen_format="nf4", compute_dtype="bfloat16"
    )
    texts = write(run, PROMPTS[::2])
    assert [len(text.completion) for text in texts] == [TOKENS, TOKENS]


def test_a_text_ends_at_a_stop_and_where_the_model_has_no_place(
    tmp_path: Path, llama: Path, dataset: Path
) -> None:
    run = Run(tmp_path, llama, dataset)
    long, short, _ = free = write(run, num_tokens=40)
    assert [len(text.ids) for text in free] == [24, 24, 24]  # of 24 positions
    stop = next(token for token in long.completion if token not in short.completion)
    where = long.completion.index(stop) + 1
    ended = write(run, num_tokens=40, stops=[stop])
    assert ended[0].ended and ended[0].completion == long.completion[:where]
    assert not ended[1].ended and ended[1].ids == short.ids


def test_drawn_texts_come_again_with_their_seed_and_each_by_itself(
    tmp_path: Path, llama: Path, dataset: Path
) -> None:
    run = Run(tmp_path, llama, dataset)
    texts = [text.ids for text in write(run, choose=Drawn(1.0, seed=5))]
    assert texts == [text.ids for text in write(run, choose=Drawn(1.0, seed=5))]
    assert texts != [text.ids for text in write(run, choose=Drawn(1.0, seed=6))]
    assert write(run, PROMPTS[:1], choose=Drawn(1.0, seed=5))[0].ids == texts[0]


def test_what_is_drawn_has_the_chances_of_its_logits() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    draw = Drawn(2.0, seed=1)
    counts = torch.bincount(torch.tensor([draw(logits, [0])[0] for _ in range(4000)]))
    expected = (logits[0] / 2).softmax(dim=0)
    assert torch.allclose(counts / 4000, expected, atol=0.03)


def test_a_logit_that_is_no_number_ends_its_text_alone(
    tmp_path: Path, llama: Path, dataset: Path
) -> None:
    run = Run(tmp_path, llama, dataset)
    with open_run(run) as (work, mover):
        embed = work.module.embed

        def poisoned(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            hidden = embed(ids, table)
            return hidden.masked_fill((ids == 333)[..., None], float("nan"))

        work.module.embed = poisoned  # type: ignore[method-assign]
        texts = generate(work, mover, PROMPTS, num_tokens=4, stops=(), choose=greedy)
    assert [text.is_finite for text in texts] == [True, True, False]
    assert [len(text.completion) for text in texts] == [4, 4, 0]


def test_no_temperature_is_too_small_to_draw_at() -> None:
    logits = torch.tensor([[1.0, 30.0, -2.0], [-5.0, -7.0, -6.0]])
    assert Drawn(1e-320, seed=0)(logits, (0, 1)) == [1, 0]
