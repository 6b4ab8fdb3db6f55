"""Sample texts of a run: told at every evaluation, without any effect on what is trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from datasets import write_dataset, write_preferences
from headrace.engine import RunEvent, TokenDataset, make_plan, read_model_spec
from headrace.engine.box import detect_box
from headrace.engine.labels import prompt_ids
from headrace.engine.tokenizer import load_tokenizer
from runs import Run, assert_same_state
from tiny import make_tiny_llama

ASKED = ("Which way does the water run?", "Say it again.")


@pytest.fixture
def origin(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Model, training data, evaluation data."""
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    data = write_dataset(tmp_path / "data", [40, 9, 10, 11, 12, 13], vocab=384)
    return model, data, write_dataset(tmp_path / "eval", [20, 12, 14, 9], vocab=384, seed=1)


def sampled(events: list[RunEvent]) -> list[RunEvent]:
    return [event for event in events if event.type == "samples"]


def test_samples_come_with_every_evaluation_and_change_no_bit_of_the_training(
    origin: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, data, evaluation = origin
    common: dict[str, Any] = {"eval_dataset": str(evaluation), "eval_every_steps": 2}
    plain = Run(tmp_path / "plain", model, data, **common)
    plain.go()
    run = Run(
        tmp_path / "run", model, data, sample_prompts=ASKED, sample_rows=2, sample_tokens=5,
        clip_way="deferred", commit_every_steps=4, **common,
    )  # fmt: skip
    run.go()
    assert [event.step for event in sampled(run.events)] == [0, 2, 4]
    assert_same_state(run.state(), plain.state())


def test_a_sample_shows_its_prompt_what_was_written_and_what_the_data_say(
    origin: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, data, evaluation = origin
    run = Run(
        tmp_path / "run", model, data, eval_dataset=str(evaluation), sample_prompts=ASKED[:1],
        sample_rows=2, sample_tokens=5, max_steps=1,
    )  # fmt: skip
    run.go()
    asked, first, second = sampled(run.events)[0].data["samples"]
    tokenizer = load_tokenizer(model)
    assert asked["prompt"] == f"<|im_start|>user\n{ASKED[0]}<|im_end|>\n<|im_start|>assistant\n"
    assert (asked["source"], asked["row"], asked["expected"]) == ("prompt 1", None, None)
    assert (first["row"], second["row"]) == (0, 2)
    ids, labels = (values.tolist() for values in TokenDataset.open(evaluation).row(2))
    start = next(i for i, label in enumerate(labels) if label >= 0)
    assert second["prompt"] == tokenizer.decode(ids[:start])
    assert second["expected"] == tokenizer.decode(ids[start:-1])  # the last one ends a text
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    prompt = torch.tensor([prompt_ids(tokenizer, ASKED[0])])
    written = reference.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False
    )[0, prompt.shape[1] :]
    assert asked["completion"] == tokenizer.decode(written)
    assert (asked["num_tokens"], asked["ended"]) == (5, "length")


def test_prompts_alone_are_sampled_before_and_after_training(
    origin: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, data, _ = origin
    run = Run(tmp_path / "run", model, data, sample_prompts=ASKED, sample_tokens=2)
    run.go()
    assert [event.step for event in sampled(run.events)] == [0, 4]
    assert not [event for event in run.events if event.type == "eval"]


def test_preferences_are_sampled_from_what_comes_before_their_answers(
    origin: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, _, _ = origin
    answers = [(9, 12), (14, 8), (11, 13)]
    data = write_preferences(tmp_path / "pairs", answers, vocab=384)
    run = Run(
        tmp_path / "run", model, data, objective="dpo", batch_rows=2, microbatch_rows=2,
        eval_dataset=str(data), sample_rows=3, sample_tokens=2, max_steps=1,
    )  # fmt: skip
    run.go()
    before, after = sampled(run.events)
    assert (before.step, after.step) == (0, 1)
    ids, labels = (values.tolist() for values in TokenDataset.open(data).answers(1)[0])
    start = next(i for i, label in enumerate(labels) if label >= 0)
    assert before.data["samples"][1]["prompt"] == load_tokenizer(model).decode(ids[:start])


def test_a_long_prompt_keeps_its_end_and_says_so(
    origin: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, data, _ = origin
    run = Run(
        tmp_path / "run", model, data, sample_prompts=ASKED[:1], sample_prompt_tokens=6,
        sample_tokens=1, max_steps=1,
    )  # fmt: skip
    run.go()
    (told,) = sampled(run.events)[0].data["samples"]
    whole = prompt_ids(load_tokenizer(model), ASKED[0])
    assert told["prompt_tokens_cut"] == len(whole) - 6
    assert told["prompt"] == load_tokenizer(model).decode(whole[-6:])


def test_a_model_without_a_tokenizer_trains_and_says_that_there_are_no_samples(
    origin: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, data, _ = origin
    (model / "tokenizer.json").unlink()
    run = Run(tmp_path / "run", model, data, sample_prompts=ASKED, lora_export="adapter",
              method="lora")  # fmt: skip
    assert run.go().step == 4
    (warned,) = [event for event in run.events if event.level == "warn"]
    assert "no sample texts" in warned.message and "tokenizer.json" in warned.message
    assert not sampled(run.events)


def test_a_damaged_generation_config_costs_the_texts_and_not_the_run(
    origin: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, data, _ = origin
    (model / "generation_config.json").write_text("{")
    run = Run(tmp_path / "run", model, data, sample_prompts=ASKED, lora_export="adapter",
              method="lora")  # fmt: skip
    assert run.go().step == 4
    (warned,) = [event for event in run.events if event.level == "warn"]
    assert "no sample texts" in warned.message and "generation_config.json" in warned.message


def test_texts_that_cannot_be_decoded_are_an_event_and_not_the_end(
    origin: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data, _ = origin
    tokenizer = load_tokenizer(model)

    def broken(*_: Any, **__: Any) -> str:
        raise Exception("no such token")

    monkeypatch.setattr(tokenizer, "decode", broken)
    monkeypatch.setattr("headrace.engine.samples.load_tokenizer", lambda folder: tokenizer)
    run = Run(tmp_path / "run", model, data, sample_prompts=ASKED, sample_tokens=1)
    assert run.go().outcome == "succeeded"
    warned = [event.message for event in run.events if event.level == "warn"]
    assert len(warned) == 2 and all("no such token" in message for message in warned)


def test_the_plan_counts_what_texts_hold(origin: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, data, _ = origin
    spec = read_model_spec(model)

    def planned(**settings: Any) -> int:
        config = Run(tmp_path / "run", model, data, **settings).config
        box = detect_box(device="cpu", volumes=config.volumes)
        return make_plan(spec, config, longest_row_tokens=40, box=box).device_bytes["samples"]

    assert planned() == 0
    sizes = {"sample_tokens": 30, "sample_prompt_tokens": 70}
    keys_and_values = 2 * 2 * 100 * 3 * 2 * 16 * 4  # rows, tokens, layers, heads, head, bytes
    assert planned(sample_prompts=ASKED, **sizes) > keys_and_values
    one, two = planned(sample_prompts=ASKED[:1], **sizes), planned(sample_prompts=ASKED, **sizes)
    assert two - one > keys_and_values / 2 and one - (two - one) > 0  # the tokenizer comes once


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample_rows": 17}, "at most 16"),
        ({"sample_tokens": 0}, "sample_tokens is 0"),
        ({"sample_temperature": -1.0}, "sample_temperature is -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    origin: tuple[Path, Path, Path], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    model, data, _ = origin
    with pytest.raises(ValueError, match=message):
        Run(tmp_path / "run", model, data, **settings)
