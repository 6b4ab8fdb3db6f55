import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine import Box, TrainConfig
from headrace.service.errors import ApiError
from headrace.service.hyperparameters import settle
from headrace.service.job_spec import ResolvedJob, Sources, prepare_request, resolve_job
from headrace.service.schemas import parse_create
from headrace.service.site import Site, gpus
from headrace.service.survey import LONG_BYTES, count_rows, survey_file
from tiny import make_tiny_llama

MAX_POSITIONS = 256


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_llama(path, tied=True, seed=0, max_position_embeddings=MAX_POSITIONS)
    return path


def row(question: str = "how many sluices?", answer: str = "three") -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns}


def write_rows(path: Path, count: int, *extra: str) -> Path:
    path.write_text("\n".join([json.dumps(row())] * count + list(extra)) + "\n")
    return path


def resolve(
    model_dir: Path,
    training_file: Path,
    hyperparameters: dict[str, Any] | None = None,
    *,
    site: dict[str, Any] | None = None,
    validation_file: Path | None = None,
    **top: Any,
) -> ResolvedJob:
    body = {
        "model": "tiny",
        "training_file": "file-1",
        "method": {"supervised": {"hyperparameters": hyperparameters or {}}},
        **top,
    }
    volumes = (str(training_file.parent),)
    given = {"device": "cpu", "device_bytes": None, "host_bytes": None, "volumes": volumes}
    return resolve_job(
        parse_create(body).body(),
        Sources(model_dir=model_dir, training_file=training_file, validation_file=validation_file),
        Site(**(given | (site or {}))),
    )


def refusal(model_dir: Path, training_file: Path, *args: Any, **given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        resolve(model_dir, training_file, *args, **given)
    return caught.value


PAIR = {
    "input": {"messages": [{"role": "user", "content": "how many sluices?"}]},
    "preferred_output": [{"role": "assistant", "content": "three"}],
    "non_preferred_output": [{"role": "assistant", "content": "who knows"}],
}


def dpo(**hyperparameters: Any) -> dict[str, Any]:
    return {"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}


def test_a_job_on_preferences_is_settled_with_its_beta(model_dir: Path, tmp_path: Path) -> None:
    rows = tmp_path / "t.jsonl"
    rows.write_text((json.dumps(PAIR) + "\n") * 120)
    job = resolve(model_dir, rows, method=dpo(label_smoothing=0.1))
    shown = job.hyperparameters
    assert (shown["beta"], shown["label_smoothing"]) == (0.1, 0.1)
    assert (shown["learning_rate"], shown["learning_rate_multiplier"]) == (1e-6, 1.0)
    assert job.method == dpo(**shown)
    config = TrainConfig.from_dict({"model": "m", "dataset": "d", **job.train_config_values})
    assert (config.objective, config.dpo_beta, config.dpo_label_smoothing) == ("dpo", 0.1, 0.1)
    assert job.plan["forecast"]["reference_seconds"] > 0
    again = resolve(model_dir, rows, method=dpo(**shown), seed=job.seed)
    assert again.hyperparameters == shown
    assert resolve(model_dir, rows, method=dpo(beta=0.5)).train_config_values["dpo_beta"] == 0.5


def test_rows_of_another_method_are_refused_at_once(model_dir: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps(PAIR) + "\n")
    error = refusal(model_dir, pairs)
    assert error.param == "training_file" and "train with method dpo" in error.message
    many = tmp_path / "many.jsonl"
    many.write_text(4 * (json.dumps(PAIR) + "\n") + "[]\n")
    error = refusal(model_dir, many)
    assert "line 1, line 2, line 3, line 4: the row is" in error.message
    assert error.message.count("dpo") == 1 and "; line 5: " in error.message
    answers = write_rows(tmp_path / "rows.jsonl", 3)
    error = refusal(model_dir, answers, method=dpo())
    assert error.param == "training_file" and "dpo learns from pairs" in error.message
    error = refusal(model_dir, pairs, method=dpo(), validation_file=answers)
    assert error.param == "validation_file"


def test_what_preferences_cannot_have_is_named_in_their_method(
    model_dir: Path, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps(PAIR) + "\n")
    for asked in ({"train_on": "all"}, {"row_losses": True}):
        error = refusal(model_dir, pairs, method=dpo(**asked))
        assert error.param == f"method.dpo.hyperparameters.{next(iter(asked))}"


def test_a_length_that_would_fit_is_that_of_one_answer(model_dir: Path, tmp_path: Path) -> None:
    long = [{"role": "assistant", "content": "three " * 400}]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({**PAIR, "preferred_output": long}) + "\n")
    error = refusal(model_dir, pairs, method=dpo(), site={"device_bytes": 101 * 2**20})
    assert error.code == "cannot_fit" and error.hint is not None
    length = int(error.hint.partition("max_seq_len ")[2].split(",")[0].rstrip("."))
    assert length <= MAX_POSITIONS


def test_everything_left_open_is_settled_and_makes_a_config(
    model_dir: Path, tmp_path: Path
) -> None:
    job = resolve(model_dir, write_rows(tmp_path / "t.jsonl", 120))
    shown = job.hyperparameters
    assert (shown["n_epochs"], shown["batch_size"], shown["learning_rate"]) == (3, 2, 1e-5)
    assert shown["max_seq_len"] == MAX_POSITIONS and shown["overlong"] == "error"
    assert shown["train_on"] == "assistant"
    assert job.method["supervised"]["hyperparameters"] == shown
    config = TrainConfig.from_dict({"model": "m", "dataset": "d", **job.train_config_values})
    assert (config.num_epochs, config.batch_rows, config.microbatch_rows) == (3, 2, 2)
    assert (config.packing, config.microbatch_tokens) == ("on", None)
    assert job.plan["microbatch_tokens"] == 2 * job.plan["longest_row_tokens"]
    assert config.compute_dtype == "float32" and config.seed == job.seed
    assert job.plan["total_device_bytes"] > 0 and job.plan["longest_row_is_estimate"]
    assert job.warnings == ()


GPU = {
    "device": "cuda",
    "compiles": True,
    "described": Box(device="cuda", device_bytes=2**34, host_bytes=2**34, volumes={"/": 2**40}),
}


@pytest.mark.parametrize(
    ("site", "asked", "top", "how"),
    [
        (GPU, {}, {}, "dynamic"),
        (GPU, {"compile": "auto"}, {}, "dynamic"),
        (GPU, {"compile": "static"}, {}, "static"),
        (GPU, {"compile": "off"}, {}, "off"),
        (GPU, {}, {"compute_dtype": "float32"}, "off"),  # packed rows would need a mask
        (GPU, {"packing": "off"}, {"compute_dtype": "float32"}, "dynamic"),
        ({**GPU, "compiles": False}, {}, {}, "off"),  # no C compiler there
        ({}, {}, {}, "off"),
        ({}, {"compile": "dynamic"}, {}, "dynamic"),
    ],
)
def test_layers_are_compiled_unasked_on_a_gpu_where_they_can_be(
    model_dir: Path, tmp_path: Path, site: Any, asked: Any, top: Any, how: str
) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 20)
    job = resolve(model_dir, rows, asked, site=site, **top)
    assert job.hyperparameters["compile"] == how
    assert TrainConfig.from_dict(
        {"model": "m", "dataset": "d", **job.train_config_values}
    ).compile == how  # fmt: skip
    assert resolve(model_dir, rows, job.hyperparameters).hyperparameters["compile"] == how


@pytest.mark.parametrize(
    ("asked", "steps", "minutes", "shown"),
    [
        ({}, 1, None, "step"),
        ({"durability": "step"}, 1, None, "step"),
        ({"durability": {"steps": 7}}, 7, None, {"steps": 7}),
        ({"durability": {"minutes": 5}}, 2**31 - 1, 5, {"minutes": 5}),
        ({"durability": "none"}, 2**31 - 1, None, "none"),
    ],
)
def test_durability_says_when_the_state_is_committed(
    model_dir: Path, tmp_path: Path, asked: dict[str, Any], steps: int, minutes: Any, shown: Any
) -> None:
    job = resolve(model_dir, write_rows(tmp_path / "t.jsonl", 9), **asked)
    config = TrainConfig.from_dict({"model": "m", "dataset": "d", **job.train_config_values})
    assert (config.commit_every_steps, config.commit_every_minutes) == (steps, minutes)
    assert job.settings["durability"] == shown


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"early_stopping": {"patience": 2}}, "eval_every too"),
        ({"keep_best": 1}, "eval_every too"),
        ({"eval_every": 2, "keep_best": 1}, "give checkpoint_every too"),
    ],
)
def test_what_goes_by_evaluations_wants_evaluations(
    model_dir: Path, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 9)
    assert said in refusal(model_dir, rows, asked, validation_file=rows).message


def test_samples_are_of_prompts_or_of_validation_rows(model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 9)
    asked = {"sample_prompts": ["Why?"], "sample_rows": 2, "sample_tokens": 9, "eval_every": 3}
    job = resolve(model_dir, rows, asked, validation_file=rows)
    config = TrainConfig.from_dict({"model": "m", "dataset": "d", **job.train_config_values})
    assert (config.sample_prompts, config.sample_rows) == (("Why?",), 2)
    assert (config.sample_tokens, config.sample_temperature) == (9, 0.0)
    assert job.plan["device_bytes"]["samples"] > 0
    assert resolve(model_dir, rows, {"sample_prompts": ["Why?"], "eval_every": 3})
    assert "validation_file" in refusal(model_dir, rows, {"sample_rows": 2}).message
    assert "sample_prompts" in refusal(model_dir, rows, {"eval_every": 3}).message


def test_what_is_asked_is_what_runs(model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 20)
    asked = {
        "n_epochs": 2,
        "batch_size": 10,
        "gradient_accumulation_steps": 5,
        "packing": "on",
        "microbatch_tokens": 100,
        "learning_rate": 2e-4,
        "lr_scheduler": "cosine",
        "warmup_ratio": 0.1,
        "weight_decay": 0.01,
        "max_grad_norm": 0.5,
        "clip_mode": "lagged",
        "router_aux_loss_coef": 0.0,
        "max_steps": 3,
        "loss_chunk": 64,
        "eval_every": 2,
        "early_stopping": {"patience": 3, "min_delta": 0.01},
        "checkpoint_every": {"steps": 2, "minutes": 30},
        "keep_last": 4,
        "keep_best": 2,
        "optimizer": "adamw",
        "max_seq_len": 64,
        "overlong": "drop",
        "train_on": "all",
    }
    limits = {"max_bytes_written": 10**12, "max_hours": 2, "min_free_disk": 10**9}
    export = [
        {"format": "hf", "dtype": "bfloat16", "check": False},
        {"format": "gguf", "dtype": "q8_0", "check": False},
    ]
    top: dict[str, Any] = {"seed": 5, "commit_every": 2, "keep_commits": 1, "limits": limits}
    top |= {"export": export, "deterministic": False, "compute_dtype": "bfloat16"}
    job = resolve(model_dir, rows, asked, validation_file=rows, **top)
    config = TrainConfig.from_dict({"model": "m", "dataset": "d", **job.train_config_values})
    assert (config.batch_rows, config.microbatch_rows, config.num_epochs) == (10, 2, 2)
    assert (config.learning_rate, config.lr_schedule, config.warmup_ratio) == (2e-4, "cosine", 0.1)
    assert (config.weight_decay, config.max_grad_norm, config.clip_mode) == (0.01, 0.5, "lagged")
    assert (config.max_steps, config.loss_chunk_tokens, config.eval_every_steps) == (3, 64, 2)
    assert (config.packing, config.microbatch_tokens) == ("on", 100)
    assert config.router_aux_loss_coef == 0
    assert (config.checkpoint_every_steps, config.keep_last) == (2, 4)
    assert (config.keep_best, config.checkpoint_every_minutes) == (2, 30)
    assert (config.early_stop_evals, config.early_stop_delta) == (3, 0.01)
    assert (config.commit_every_steps, config.seed) == (2, 5)
    assert (config.export_dtype, config.deterministic) == ("bfloat16", False)
    assert (config.export_gguf, config.check_export) == ("q8_0", False)
    shown = job.settings
    assert (shown["export"], shown["limits"], shown["keep_commits"]) == (export, limits, 1)
    assert (shown["durability"], shown["compute_dtype"]) == ({"steps": 2}, "bfloat16")
    assert job.plan["total_steps"] == 3
    assert (config.keep_commits, config.max_bytes_written) == (1, 10**12)
    assert job.hyperparameters["learning_rate_multiplier"] == 20
    assert {name: job.hyperparameters[name] for name in asked} == asked


def test_an_adapter_is_settled_and_makes_a_config(model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 9)
    job = resolve(model_dir, rows, {"adapter": {"type": "lora"}})
    assert job.hyperparameters["adapter"] == {
        "type": "lora", "rank": 16, "alpha": 32.0, "rslora": False, "dropout": 0.0,
        "target_modules": "all-linear", "base": None,
    }  # fmt: skip
    assert job.hyperparameters["learning_rate"] == 2e-4
    config = TrainConfig.from_dict({"model": "m", "dataset": "d", **job.train_config_values})
    assert (config.method, config.lora_rank, config.lora_alpha) == ("lora", 16, 32.0)
    assert (config.lora_targets, config.frozen_format) == (("all-linear",), "auto")
    assert config.lora_export == "adapter"
    assert job.settings["export"] == [{"format": "adapter", "dtype": "auto", "check": True}]
    assert job.plan["device_bytes"]["table_grad"] == 0


def test_qlora_targets_and_a_whole_export_are_what_was_asked(
    model_dir: Path, tmp_path: Path
) -> None:
    adapter = {"type": "qlora", "rank": 4, "target_modules": ["q_proj", "v_proj"], "rslora": True}
    rows = write_rows(tmp_path / "t.jsonl", 9)
    job = resolve(model_dir, rows, {"adapter": adapter}, export=[{"format": "hf"}])
    config = TrainConfig.from_dict({"model": "m", "dataset": "d", **job.train_config_values})
    assert (config.lora_targets, config.lora_rslora) == (("q_proj", "v_proj"), True)
    assert (config.frozen_format, config.lora_export) == ("nf4", "merged")


def test_frozen_parameters_are_those_of_the_patterns(model_dir: Path, tmp_path: Path) -> None:
    patterns = ["model.embed_tokens.*", "*.mlp.*"]
    job = resolve(model_dir, write_rows(tmp_path / "t.jsonl", 9), {"freeze": patterns})
    config = TrainConfig.from_dict({"model": "m", "dataset": "d", **job.train_config_values})
    assert config.freeze == tuple(patterns) and config.method == "full"


@pytest.mark.parametrize(
    ("asked", "top", "said"),
    [
        ({"freeze": ["model.embed.*"]}, {}, "is the name of no parameter"),
        ({"adapter": {"type": "lora", "target_modules": "qkv"}}, {}, "'qkv' is the name of no"),
        ({"adapter": {"type": "lora"}, "freeze": ["*"]}, {}, "do not go together"),
        ({"router_aux_loss_coef": 0.1}, {}, "has no experts to balance"),
        ({}, {"export": [{"format": "adapter"}]}, "the job trains none"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(
    model_dir: Path, tmp_path: Path, asked: dict[str, Any], top: dict[str, Any], said: str
) -> None:
    assert said in refusal(model_dir, write_rows(tmp_path / "t.jsonl", 9), asked, **top).message


@pytest.mark.parametrize(
    ("asked", "state_format"),
    [(None, "exact"), ("exact", "exact"), ("economy", "q8"), ("q8", "q8"), ("sr_q8", "sr_q8")],
)
def test_the_state_format_that_is_asked_for_runs_and_is_shown(
    model_dir: Path, tmp_path: Path, asked: str | None, state_format: str
) -> None:
    job = resolve(model_dir, write_rows(tmp_path / "t.jsonl", 9), state_format=asked)
    assert job.train_config_values["state_format"] == state_format
    assert job.settings["state_format"] == job.plan["state_format"] == state_format
    assert job.plan["state_bytes"]["q8"] < job.plan["state_bytes"]["exact"]


@pytest.mark.parametrize(
    ("asked", "strategy"), [(None, "auto"), ("auto", "auto"), ("memascend", "memascend")]
)
def test_the_strategy_that_is_asked_for_runs_and_is_shown(
    model_dir: Path, tmp_path: Path, asked: str | None, strategy: str
) -> None:
    job = resolve(model_dir, write_rows(tmp_path / "t.jsonl", 9), strategy=asked)
    assert job.train_config_values["strategy"] == strategy
    assert job.settings["strategy"] == job.plan["strategy"] == strategy
    assert ("nvme" in job.plan["tiers"]) == (strategy == "memascend")


@pytest.mark.parametrize(
    ("strategy", "asked", "top", "said"),
    [
        ("ratel", {}, {"commit_every": 5}, "it commits every step"),
        ("zero_offload", {"adapter": {"type": "lora"}}, {}, "here some are frozen"),
    ],
)
def test_a_strategy_that_the_rest_contradicts_is_refused_by_its_field(
    model_dir: Path, tmp_path: Path, strategy: str, asked: Any, top: Any, said: str
) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 9)
    error = refusal(model_dir, rows, asked, strategy=strategy, **top)
    assert (error.param, error.code) == ("strategy", "strategy_conflict")
    assert f"strategy {strategy} " in error.message and said in error.message


def test_a_strategy_that_cannot_fit_is_to_blame_where_auto_would(
    model_dir: Path, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 9)
    room = resolve(model_dir, rows, strategy="memascend").plan["total_host_bytes"]
    error = refusal(model_dir, rows, strategy="megatrain", host_bytes=room)
    assert (error.param, error.code) == ("strategy", "cannot_fit")
    assert "by strategy megatrain needs" in error.message
    assert error.hint and "strategy auto" in error.hint


@given(
    num_rows=st.integers(1, 10**7),
    asked=st.fixed_dictionaries(
        {},
        optional={
            "batch_size": st.integers(1, 256),
            "n_epochs": st.integers(1, 50),
            "learning_rate_multiplier": st.floats(1e-3, 1e3),
            "gradient_accumulation_steps": st.integers(1, 300),
        },
    ),
)
def test_settling_twice_changes_nothing_and_stays_in_range(
    num_rows: int, asked: dict[str, Any]
) -> None:
    settled = settle(asked, num_rows=num_rows, max_positions=64)
    assert settle(settled, num_rows=1, max_positions=8) == settled
    assert 1 <= settled["gradient_accumulation_steps"] <= settled["batch_size"] <= 256
    assert 1 <= settled["n_epochs"] <= 50


def test_large_data_get_fewer_epochs() -> None:
    assert settle({}, num_rows=60_000, max_positions=1)["n_epochs"] == 1
    assert settle({}, num_rows=30_000, max_positions=1)["n_epochs"] == 2


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"max_seq_len": 4096}, "max_seq_len"),
        ({"eval_every": 5}, "eval_every"),
        ({"packing": "off", "microbatch_tokens": 64}, "packing"),
        ({"learning_rate": 1e-4, "learning_rate_multiplier": 3.0}, "learning_rate_multiplier"),
        ({"keep_last": 2}, "keep_last"),
        ({"sample_tokens": 9}, "sample_tokens"),
        ({"sample_prompt_tokens": 9}, "sample_prompt_tokens"),
        ({"sample_temperature": 0.5}, "sample_temperature"),
        ({"sample_seed": 9}, "sample_seed"),
        ({"sample_prompts": ["Why?"], "sample_seed": 9}, "sample_seed"),
    ],
)
def test_what_cannot_be_done_is_refused_naming_the_field(
    model_dir: Path, tmp_path: Path, asked: dict[str, Any], param: str
) -> None:
    error = refusal(model_dir, write_rows(tmp_path / "t.jsonl", 9), asked)
    assert error.param == f"method.supervised.hyperparameters.{param}"


def test_rows_are_packed_unless_a_job_wants_them_padded(model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 20)
    assert resolve(model_dir, rows, {"packing": "auto"}).hyperparameters["packing"] == "on"
    job = resolve(model_dir, rows, {"packing": "off"})
    assert job.train_config_values["packing"] == "off"
    assert job.plan["microbatch_tokens"] is None


def test_unknown_hyperparameter_is_refused_with_a_suggestion(
    model_dir: Path, tmp_path: Path
) -> None:
    error = refusal(model_dir, write_rows(tmp_path / "t.jsonl", 9), {"lerning_rate": 1e-4})
    assert "Did you mean 'method.supervised.hyperparameters.learning_rate'?" in error.message


def test_bad_rows_are_refused_with_their_lines(model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 2, "{not json", json.dumps({"messages": []}))
    error = refusal(model_dir, rows)
    assert (error.status, error.param, error.code) == (
        400,
        "training_file",
        "invalid_training_data",
    )
    assert "line 3" in error.message and "line 4" in error.message


def test_bad_rows_of_the_validation_file_are_blamed_on_it(model_dir: Path, tmp_path: Path) -> None:
    good = write_rows(tmp_path / "t.jsonl", 2)
    bad = write_rows(tmp_path / "v.jsonl", 0, "[]")
    assert refusal(model_dir, good, validation_file=bad).param == "validation_file"


def test_empty_file_is_refused(model_dir: Path, tmp_path: Path) -> None:
    empty = tmp_path / "t.jsonl"
    empty.write_text("\n\n")
    assert refusal(model_dir, empty).code == "empty_training_file"


def test_job_that_cannot_fit_is_refused_with_the_numbers(model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 9)
    error = refusal(model_dir, rows, device_bytes=1000)
    assert error.code == "cannot_fit" and any(c.isdigit() for c in error.message)


def test_job_may_lower_a_budget_but_not_raise_it(model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 9)
    site = {"host_bytes": 10**9}
    low = resolve(model_dir, rows, site=site, host_bytes=10**8)
    assert low.train_config_values["host_bytes"] == 10**8
    assert refusal(model_dir, rows, site=site, host_bytes=10**10).code == "over_budget"
    assert resolve(model_dir, rows, site=site).train_config_values["host_bytes"] == 10**9


@pytest.mark.parametrize(
    ("config", "code"), [('{"model_type": "mamba"}', "unknown_family"), ("{", "bad_model")]
)
def test_model_of_no_use_is_refused(tmp_path: Path, config: str, code: str) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text(config)
    (model / "model.safetensors").write_bytes(b"")
    error = refusal(model, write_rows(tmp_path / "t.jsonl", 9))
    assert (error.param, error.code) == ("model", code)


def test_long_count_becomes_an_estimate(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.jsonl", 20_000)
    exact, guess = (count_rows(path, limit_seconds=seconds) for seconds in (60, 0))
    assert (exact.num_rows, exact.is_estimate) == (20_000, False)
    assert guess.is_estimate and abs(guess.num_rows - 20_000) < 200


@pytest.mark.parametrize("line", ["", json.dumps({"text": "x" * LONG_BYTES})])
def test_the_count_ends_in_time_whatever_the_lines_are(tmp_path: Path, line: str) -> None:
    """Blank lines count for nothing, and long ones are few: neither may keep it from the clock."""
    (tmp_path / "t.jsonl").write_text(f"{line}\n" * (2000 if not line else 3))
    assert count_rows(tmp_path / "t.jsonl", limit_seconds=0).is_estimate


def test_a_file_of_which_no_row_comes_in_time_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.service.survey.SECONDS", 0)
    (tmp_path / "t.jsonl").write_text("\n" * 5000)
    with pytest.raises(ApiError, match="no row came; wanted one JSON object a line"):
        survey_file(tmp_path / "t.jsonl", param="training_file", name="t.jsonl")


def test_one_long_row_does_not_make_every_step_long(model_dir: Path, tmp_path: Path) -> None:
    """Memory is planned for it, time for the rows as they are on the mean, with a wider range."""
    rows = [{"text": "four" * (100 if i == 7 else 8)} for i in range(48)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    mean = path.stat().st_size / len(rows) / 4
    job = resolve(model_dir, path, {"batch_size": 4})
    assert job.plan["longest_row_tokens"] > 5 * mean
    found = job.plan["forecast"]
    assert found["tokens_per_step"] == pytest.approx(4 * mean, rel=0.05)
    span, known = found["step_seconds"], 2.0  # of a box that was not measured, but for its rows
    assert span["low"] < span["expected"] / known < known * span["expected"] < span["high"]
    padded = resolve(model_dir, path, {"batch_size": 4, "packing": "off"}).plan
    assert padded["forecast"]["tokens_per_step"] == 4 * padded["longest_row_tokens"]


@pytest.mark.parametrize("train_on", [None, "last_assistant"])
def test_preparing_is_told_what_to_train_on(
    model_dir: Path, tmp_path: Path, train_on: str | None
) -> None:
    rows = write_rows(tmp_path / "t.jsonl", 20)
    settled = resolve(model_dir, rows, {"train_on": train_on} if train_on else None).hyperparameters
    if train_on is None:
        del settled["train_on"]  # as in jobs from before there was a choice
    request = prepare_request(
        {"seed": 1, "method": {"supervised": {"hyperparameters": settled}}},
        Sources(model_dir=model_dir, training_file=rows),
        Site(device="cpu", device_bytes=None, host_bytes=None, volumes=(str(tmp_path),)),
        job_dir=tmp_path,
        cache_dir=tmp_path,
    )
    assert request.train_on == (train_on or "assistant")


def test_columns_are_looked_at_and_handed_on(model_dir: Path, tmp_path: Path) -> None:
    rows = tmp_path / "t.jsonl"
    rows.write_text('{"question": "Which?", "answer": "North."}\n' * 30)
    assert "keys seen: answer, question" in str(refusal(model_dir, rows))
    columns = {"prompt": "question", "completion": "answer"}
    job = resolve(model_dir, rows, dataset={"columns": columns})
    request = prepare_request(
        {"seed": 1, "dataset": {"columns": columns}, "method": job.method},
        Sources(model_dir=model_dir, training_file=rows),
        Site(device="cpu", device_bytes=None, host_bytes=None, volumes=(str(tmp_path),)),
        job_dir=tmp_path,
        cache_dir=tmp_path,
    )
    assert request.columns == columns


def test_rows_of_an_array_are_counted_however_they_are_packed(
    model_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(gzip.compress(json.dumps([row()] * 120).encode()))
    assert count_rows(path, limit_seconds=60).num_rows == 120
    assert resolve(model_dir, path).hyperparameters["batch_size"] == 2


def test_a_file_that_cannot_be_read_is_refused_by_the_users_name_for_it(
    model_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "file-17"
    path.write_bytes(b"PAR1....")
    with pytest.raises(ApiError, match="rows.parquet: its Parquet data cannot be read") as caught:
        survey_file(path, param="training_file", name="rows.parquet")
    assert caught.value.param == "training_file"


def test_site_without_a_gpu_splits_memory_and_needs_no_driver() -> None:
    site = Site(device="cpu", device_bytes=None, host_bytes=None, volumes=("/",))
    assert site.box().host_bytes > 0
    assert isinstance(list(gpus()), list)


def test_a_daemon_set_to_cuda_without_a_gpu_says_so(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.service.site.gpus", lambda: ())
    error = refusal(model_dir, write_rows(tmp_path / "t.jsonl", 3), site={"device": "cuda"})
    assert (error.code, error.status) == ("no_device", 503) and "no GPU" in error.message
