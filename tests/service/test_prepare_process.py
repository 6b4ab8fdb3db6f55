import asyncio
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import Box, RunEvent, TokenDataset, TrainConfig
from headrace.service.event_log import EventLog, EventReader
from headrace.service.json_file import read_json, write_json
from headrace.service.preparation import prepare_job, tell_tenths
from headrace.service.prepare_request import PrepareRequest, Refused
from headrace.service.preparer import Preparer
from tiny import make_tiny_llama


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_llama(path, tied=False, seed=0)
    return path


def make_request(model_dir: Path, job_dir: Path, lines: list[str], **given: Any) -> PrepareRequest:
    job_dir.mkdir(exist_ok=True)
    rows = job_dir / "rows.jsonl"
    rows.write_text("\n".join(lines))
    box = Box(device="cpu", device_bytes=10**9, host_bytes=10**9, volumes={"/": 10**12})
    values = {
        "job_dir": str(job_dir),
        "cache_dir": str(job_dir / "cache"),
        "model_dir": str(model_dir),
        "training_file": str(rows),
        "validation_file": None,
        "max_seq_len": 64,
        "overlong": "error",
        "config": {"batch_rows": 4, "microbatch_rows": 4, "volumes": ["/"]},
        "box": {name: getattr(box, name) for name in ("device", "device_bytes", "host_bytes",
                                                      "volumes")},
    }  # fmt: skip
    return PrepareRequest(**(values | given))


def line(answer: str) -> str:
    turns = [{"role": "user", "content": "which gate?"}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": turns})


GOOD = [line("the north gate"), line("the south gate"), line("none")]


def ignore(_: RunEvent) -> None:
    """Nobody listens."""


def test_prepared_job_has_data_and_a_config_to_run(model_dir: Path, tmp_path: Path) -> None:
    told: list[RunEvent] = []
    request = make_request(model_dir, tmp_path / "job", GOOD)
    config = prepare_job(replace(request, validation_file=request.training_file), told.append)
    assert TokenDataset.open(Path(config.dataset)).num_rows == 3
    assert config.eval_dataset and TokenDataset.open(Path(config.eval_dataset)).num_rows == 3
    assert config.assets == str(model_dir) and config.model == str(model_dir)
    report = next(event for event in told if event.type == "message")
    assert "3 rows" in report.message and report.data["kept"] == 3
    assert [event.type for event in told][-1] == "plan"


def test_validation_rows_that_are_trained_on_are_warned_of(model_dir: Path, tmp_path: Path) -> None:
    request = make_request(model_dir, tmp_path / "job", GOOD)
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("\n".join([line("the east gate"), GOOD[1]]))
    told: list[RunEvent] = []
    prepare_job(replace(request, validation_file=str(held_out)), told.append)
    (warning,) = [event.message for event in told if event.level == "warn"]
    assert warning.startswith("validation_file: 1 of 2 rows are in the training data too")
    assert "held_out.jsonl, line 2: the same as rows.jsonl, line 2" in warning


def test_train_on_decides_what_a_prepared_job_learns(model_dir: Path, tmp_path: Path) -> None:
    def prepared(**given: Any) -> TokenDataset:
        request = make_request(model_dir, tmp_path / "job", GOOD)
        return TokenDataset.open(prepare_job(replace(request, **given), ignore).dataset)

    some, everything = prepared().num_trained_tokens, prepared(train_on="all")
    assert some < everything.num_trained_tokens == everything.num_tokens - 3
    report = json.loads((everything.path / "report.json").read_text())
    assert report["numerics"]["train_on"] == "all"


def test_rows_that_were_tokenized_before_are_not_again(model_dir: Path, tmp_path: Path) -> None:
    told: list[RunEvent] = []
    request = make_request(model_dir, tmp_path / "job", GOOD)
    request = replace(request, validation_file=request.training_file)
    first = prepare_job(request, told.append)
    assert not any("not again" in event.message for event in told)
    other = make_request(model_dir, tmp_path / "other", GOOD, cache_dir=request.cache_dir)
    other = replace(other, validation_file=other.training_file)
    told.clear()
    second = prepare_job(other, told.append)
    said = [event.message for event in told if "not again" in event.message]
    assert [message.split(":")[0] for message in said] == ["training_file", "validation_file"]
    assert any("3 of 3 rows are in the training data too" in event.message for event in told)
    for one, two in ((first.dataset, second.dataset), (first.eval_dataset, second.eval_dataset)):
        assert one and two and one != two
        assert (
            TokenDataset.open(one).row(1)[0].tolist() == TokenDataset.open(two).row(1)[0].tolist()
        )


def test_a_job_names_the_columns_of_its_rows(model_dir: Path, tmp_path: Path) -> None:
    rows = [json.dumps({"question": "which gate?", "answer": answer}) for answer in ("a", "b")]
    request = make_request(model_dir, tmp_path / "job", rows)
    with pytest.raises(Refused, match="line 1: the row's format is not known"):
        prepare_job(request, ignore)
    columns = {"prompt": "question", "completion": "answer"}
    config = prepare_job(replace(request, columns=columns), ignore)
    assert TokenDataset.open(config.dataset).num_rows == 2


def test_a_long_reading_is_told_in_tenths() -> None:
    told: list[RunEvent] = []
    tell = tell_tenths(told.append, "training_file", seconds=0)
    for done in (0, 5, 10, 19, 35, 99, 100):
        tell(done, 100)
    assert [event.message for event in told] == [
        f"training_file: {tenths}0 % is read" for tenths in (1, 3, 9)
    ]
    quiet = tell_tenths(told.append, "training_file", seconds=60)
    quiet(50, 100)
    assert len(told) == 3


def test_microbatch_shrinks_until_the_job_fits_and_that_is_said(
    model_dir: Path, tmp_path: Path
) -> None:
    request = make_request(model_dir, tmp_path / "job", [line("the gate " * 6)] * 8)
    batch = {"batch_rows": 8, "microbatch_rows": 8, "volumes": ["/"]}
    told: list[RunEvent] = []
    smaller = {**batch, "microbatch_rows": 4, "recompute": "all", "num_slots": 2}
    prepare_job(replace(request, config=smaller), told.append)
    tight = {**batch, "device_bytes": told[-1].data["total_device_bytes"]}
    told.clear()
    config = prepare_job(replace(request, config=tight), told.append)
    assert config.microbatch_rows == 4
    assert any("microbatches of" in event.message for event in told if event.level == "warn")


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"lines": [*GOOD, "{"]}, "training_file", "data_problem"),
        ({"lines": [line("the gate " * 60)]}, "training_file", "data_problem"),
        ({"validation_file": "/nowhere"}, "validation_file", "file_not_found_error"),
        ({"model_dir": "/nowhere"}, "model", "model_error"),
        ({"config": {"batch_rows": 4, "device_bytes": 1000}}, None, "cannot_fit"),
    ],
)
def test_what_the_user_can_mend_is_refused_naming_the_field(
    model_dir: Path, tmp_path: Path, given: dict[str, Any], param: str | None, code: str
) -> None:
    request = make_request(model_dir, tmp_path / "job", given.pop("lines", GOOD))
    with pytest.raises(Refused) as caught:
        prepare_job(replace(request, **given), ignore)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_child_leaves_a_spec_and_its_story(model_dir: Path, tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    make_request(model_dir, job_dir, GOOD, after_seq=5).write()
    assert asyncio.run(Preparer().prepare(job_dir)) is None
    spec = read_json(job_dir / "prepared.json")
    assert spec and TrainConfig.from_dict(spec).microbatch_rows == 4
    events = EventReader(job_dir / "events.jsonl").read()
    assert events[0].seq == 6 and "reading the tokenizer" in [event.message for event in events]


def test_child_leaves_the_reason_when_it_refuses(model_dir: Path, tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    names = {"rows.jsonl": "rivers.jsonl"}
    make_request(model_dir, job_dir, [*GOOD, '{"messages": 3}'], names=names).write()
    assert asyncio.run(Preparer().prepare(job_dir)) is None
    refusal = read_json(job_dir / "refusal.json")
    assert refusal and refusal["param"] == "training_file" and "line 4" in refusal["message"]
    assert "rivers.jsonl, line 4" in refusal["message"], refusal
    assert not (job_dir / "prepared.json").exists()
    last = EventReader(job_dir / "events.jsonl").read()[-1]
    assert last.level == "info" and last.data["bad_rows"] == 1  # the job's move tells the error
    assert last.message.startswith("training_file: ")


def scripted(job_dir: Path, **script: Any) -> Path:
    make_request(job_dir, job_dir, []).write()
    write_json(job_dir / "script.json", script)
    return job_dir


def test_memory_of_the_child_is_capped(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    preparer = Preparer(prepare="fake_engine:prepare", memory_bytes=256 << 20)
    cause = asyncio.run(preparer.prepare(scripted(tmp_path / "job", prepare="fill")))
    assert cause and "more than 268435456 bytes" in cause


def test_cancelled_child_is_gone_at_once(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    job_dir = scripted(tmp_path / "job", prepare_seconds=60)
    preparer = Preparer(prepare="fake_engine:prepare")

    async def body() -> str | None:
        running = asyncio.create_task(preparer.prepare(job_dir))
        while not EventReader(job_dir / "events.jsonl").read():
            await asyncio.sleep(0.02)
        preparer.cancel(job_dir)
        async with asyncio.timeout(30):  # the script prepares for a minute
            return await running

    assert asyncio.run(body()) == "signal SIGKILL"


def test_log_may_be_appended_to_from_many_threads(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:

        def talk() -> None:
            for _ in range(50):
                log.append(RunEvent(type="message", message="x" * 500))

        threads = [threading.Thread(target=talk) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = EventReader(tmp_path / "events.jsonl").read()
    assert [event.seq for event in events] == list(range(1, 201))
    assert time.time() - events[0].at < 60
