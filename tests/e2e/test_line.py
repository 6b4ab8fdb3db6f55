"""The whole line: real daemon, `openai` client, SIGKILL, resume, export, plain transformers."""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from safetensors.numpy import load_file

from headrace.engine import write_demo_data
from headrace.service.cli.output import Exit
from headrace.service.client import Client
from running_daemon import RunningDaemon, running_daemon
from tiny import make_tiny_llama

# The state of the model (see `house`) does not fit the host budget: the volume carries it.
BUDGETS = ("--device-bytes", "200MB", "--host-bytes", "24MB")
STEPS = 14
DONE = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class House:
    """Where the daemon's things lie, and rows to train on."""

    home: Path
    train: Path
    valid: Path

    def daemon(self, data: str) -> AbstractContextManager[RunningDaemon]:
        """A daemon over the data directory of that name."""
        return running_daemon(self.home / data, self.home / "models", BUDGETS)


@dataclass(frozen=True)
class Finished:
    """A job that succeeded, and the weights it made."""

    job: Any
    weights: dict[str, bytes]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    home = tmp_path_factory.mktemp("line")
    make_tiny_llama(home / "models" / "tiny", tied=True, seed=3, hidden=192, layers=8)
    rows = write_demo_data(home / "rows")
    return House(home, rows.train, rows.valid)


@pytest.fixture(scope="module")
def daemon(house: House) -> Iterator[RunningDaemon]:
    with house.daemon("data") as running:
        yield running


def api_of(daemon: RunningDaemon) -> OpenAI:
    return OpenAI(base_url=f"{daemon.url}/v1", api_key="-")


def create(api: OpenAI, house: House, **ours: Any) -> str:
    """Upload and submit, as any user of the OpenAI API would; `ours` are Headrace's own fields."""
    train = api.files.create(file=house.train, purpose="fine-tune")
    valid = api.files.create(file=house.valid, purpose="fine-tune")
    hyperparameters: Any = {
        "batch_size": 8,
        "learning_rate": 1e-3,
        "max_steps": STEPS,
        "checkpoint_every": {"steps": 10},
    }
    job = api.fine_tuning.jobs.create(
        model="tiny",
        training_file=train.id,
        validation_file=valid.id,
        seed=11,
        method={"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
        extra_body=ours,
    )
    return job.id


def await_(look: Callable[[], bool], *, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, "not seen in time"
        time.sleep(0.05)


def finish(api: OpenAI, job_id: str) -> Any:
    await_(lambda: api.fine_tuning.jobs.retrieve(job_id).status in DONE)
    job = api.fine_tuning.jobs.retrieve(job_id)
    assert job.status == "succeeded", job.error
    return job


def await_step(url: str, job_id: str, step: int) -> None:
    with Client(url) as client:
        await_(lambda: (client.job(job_id)["engine"].get("step") or 0) >= step)


def weights(daemon: RunningDaemon, job: Any) -> dict[str, bytes]:
    with Client(daemon.url) as client:
        path = Path(client.model(job.fine_tuned_model)["path"])
    return {name: value.tobytes() for name, value in load_file(path / "model.safetensors").items()}


def steps_of(api: OpenAI, job_id: str) -> list[dict[str, Any]]:
    events = api.fine_tuning.jobs.list_events(job_id, limit=10)
    return [dict(event.data) for event in events if event.type == "metrics"][::-1]  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def undisturbed(daemon: RunningDaemon, house: House) -> Finished:
    """A job that ran through."""
    api = api_of(daemon)
    job = finish(api, create(api, house))
    return Finished(job, weights(daemon, job))


def test_job_with_a_killed_worker_ends_with_the_same_weights(
    daemon: RunningDaemon, house: House, undisturbed: Finished
) -> None:
    api = api_of(daemon)
    job_id = create(api, house)
    await_step(daemon.url, job_id, 5)
    with Client(daemon.url) as client:
        killed = client.status()["worker"]["pid"]
        os.kill(killed, signal.SIGKILL)
        job = finish(api, job_id)
        assert client.status()["worker"]["pid"] != killed
    assert [step["step"] for step in steps_of(api, job_id)] == list(range(1, STEPS + 1))
    assert weights(daemon, job) == undisturbed.weights


def test_a_job_by_another_strategy_ends_with_the_same_weights(
    daemon: RunningDaemon, house: House, undisturbed: Finished
) -> None:
    api = api_of(daemon)
    with pytest.raises(BadRequestError, match="by strategy megatrain needs") as refused:
        create(api, house, strategy="megatrain", dry_run=True)
    assert (refused.value.param, refused.value.code) == ("strategy", "cannot_fit")
    job_id = create(api, house, strategy="memascend")
    job = finish(api, job_id)
    assert job.engine["settings"]["strategy"] == job.engine["plan"]["strategy"] == "memascend"
    assert weights(daemon, job) == undisturbed.weights


def test_state_passes_over_the_volume_and_counts_say_so(
    daemon: RunningDaemon, undisturbed: Finished
) -> None:
    state_bytes = 12 * sum(len(value) // 4 for value in undisturbed.weights.values())
    for step in steps_of(api_of(daemon), undisturbed.job.id):
        links = step["links"]
        assert links["nvme_read"]["payload_bytes"] >= state_bytes
        assert links["nvme_write"]["payload_bytes"] >= state_bytes


def test_export_answers_in_plain_transformers(
    daemon: RunningDaemon, undisturbed: Finished, tmp_path: Path
) -> None:
    target = tmp_path / "model"
    headrace = [sys.executable, "-m", "headrace.service", "export", undisturbed.job.id, str(target)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*headrace, "--url", daemon.url], check=True, env=environment)
    program = (
        "import sys\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "ids = tokenizer('The wheel', return_tensors='pt')\n"
        "print(model.generate(**ids, max_new_tokens=4, do_sample=False).shape[1])\n"
        "assert 'headrace' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(target)], capture_output=True, text=True
    )
    assert done.returncode == 0 and int(done.stdout) > 4, done.stderr


def test_checkpoints_and_result_file_are_listed(
    daemon: RunningDaemon, undisturbed: Finished
) -> None:
    api, job = api_of(daemon), undisturbed.job
    assert [c.step_number for c in api.fine_tuning.jobs.checkpoints.list(job.id)] == [10]
    table = api.files.content(job.result_files[0]).text.splitlines()
    assert table[0].startswith("step,train_loss") and len(table) >= STEPS


def test_packed_rows_of_several_formats_train_and_what_leaks_is_told(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    rows = [{"prompt": "Which gate?", "completion": "North."}, {"text": "Water runs."}]
    rows += [{"instruction": "Name a gate.", "output": "South."}]
    (tmp_path / "rows").write_bytes(gzip.compress(json.dumps(rows).encode()))
    (tmp_path / "held_out").write_text(json.dumps(rows[2]))
    api = api_of(daemon)
    ids = [api.files.create(file=tmp_path / name, purpose="fine-tune").id
           for name in ("rows", "held_out")]  # fmt: skip
    hyperparameters: Any = {"max_steps": 1, "train_on": "all"}
    method: Any = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    made = api.fine_tuning.jobs.create(
        model="tiny", training_file=ids[0], validation_file=ids[1], method=method
    )
    job = finish(api, made.id)
    assert job.method.supervised.hyperparameters.train_on == "all"
    events = list(api.fine_tuning.jobs.list_events(job.id))
    (warning,) = [event.message for event in events if event.level == "warn"]
    assert "1 of 1 rows are in the training data too" in warning
    (told,) = [event for event in events if event.message.startswith("training_file: 3 rows")]
    report: Any = told.data
    assert report["formats"] == {"prompt/completion": 1, "text": 1, "alpaca": 1}
    assert report["trained_tokens"] == report["tokens"] - 3


def test_preferences_in_the_openai_form_train_a_job_and_its_table_tells_the_rewards(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    def pair(gate: str) -> dict[str, Any]:
        def said(content: str) -> list[dict[str, str]]:
            return [{"role": "assistant", "content": content}]

        asked = {"messages": [{"role": "user", "content": f"Is the {gate} gate open?"}]}
        return {"input": asked, "preferred_output": said(f"The {gate} gate is open."),
                "non_preferred_output": said("No idea.")}  # fmt: skip

    api = api_of(daemon)
    ids = []
    for name, gates in (("rows", ("north", "south", "east")), ("held_out", ("west",))):
        (tmp_path / name).write_text("".join(json.dumps(pair(gate)) + "\n" for gate in gates))
        ids.append(api.files.create(file=tmp_path / name, purpose="fine-tune").id)
    hyperparameters: Any = {"beta": 0.2, "max_steps": 4, "learning_rate": 1e-3, "eval_every": 2}
    hyperparameters |= {"sample_rows": 1, "sample_tokens": 4}
    made = api.fine_tuning.jobs.create(
        model="tiny", training_file=ids[0], validation_file=ids[1],
        method={"type": "dpo", "dpo": {"hyperparameters": hyperparameters}},
    )  # fmt: skip
    job = finish(api, made.id)
    assert job.method.type == "dpo" and job.method.dpo.hyperparameters.beta == 0.2
    assert job.hyperparameters.to_dict() == {}
    steps = steps_of(api, job.id)
    assert abs(steps[0]["train_loss"] - 0.6931) < 1e-3 and steps[-1]["reward_margin"] > 0
    text = api.files.content(job.result_files[0]).text
    rows = {int(row["step"]): row for row in csv.DictReader(text.splitlines())}
    assert float(rows[4]["reward_margin"]) == steps[-1]["reward_margin"]
    assert float(rows[2]["valid_reward_margin"]) > 0 and rows[1]["valid_reward_margin"] == ""


def test_job_of_a_killed_daemon_ends_with_the_same_weights(
    house: House, undisturbed: Finished
) -> None:
    with house.daemon("other-data") as first:
        job_id = create(api_of(first), house)
        await_step(first.url, job_id, 5)
        first.kill()
    with house.daemon("other-data") as second:
        job = finish(api_of(second), job_id)
        assert weights(second, job) == undisturbed.weights


def test_a_failed_job_is_gone_on_with_to_the_same_weights(
    daemon: RunningDaemon, house: House, undisturbed: Finished
) -> None:
    api = api_of(daemon)
    job_id = create(api, house)
    in_the_way = house.home / "data" / "jobs" / job_id / "checkpoints"
    await_(in_the_way.parent.is_dir)
    in_the_way.touch()  # no checkpoint can be written: the job fails at step 10
    await_(lambda: api.fine_tuning.jobs.retrieve(job_id).status in DONE)
    failed = api.fine_tuning.jobs.retrieve(job_id)
    assert failed.status == "failed"
    made = api.fine_tuning.jobs.create(
        model="tiny", training_file=failed.training_file, extra_body={"resume_from": job_id}
    )
    job = finish(api, made.id)
    assert [step["step"] for step in steps_of(api, made.id)] == list(range(10, STEPS + 1))
    assert weights(daemon, job) == undisturbed.weights


def test_a_job_again_from_its_bundle_makes_the_same_weights(
    daemon: RunningDaemon, undisturbed: Finished, tmp_path: Path
) -> None:
    headrace = [sys.executable, "-m", "headrace.service"]
    path = tmp_path / "job.bundle.json"
    subprocess.run([*headrace, "bundle", undisturbed.job.id, path, "--url", daemon.url], check=True)
    told = json.loads(path.read_text())
    assert path.stat().st_size < 100_000 and told["numerics_key"]["seed"] == 11
    assert len(told["curve"]["steps"]["train_loss"]) == STEPS
    assert told["surroundings"]["packages"]["torch"] and told["exports"][0]["check"]["matches"]
    again = subprocess.run(
        [*headrace, "replay", path, "--url", daemon.url, "--json"], capture_output=True, text=True
    )
    assert again.returncode == Exit.OK, again.stderr
    found = json.loads(again.stdout.splitlines()[-1])
    assert found["same_weights"] and found["differs"] == {} and found["job"] != undisturbed.job.id
    assert weights(daemon, finish(api_of(daemon), found["job"])) == undisturbed.weights


def test_second_daemon_on_the_same_data_is_refused(house: House, daemon: RunningDaemon) -> None:
    command = [*daemon.command, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=daemon.environment)
    assert done.returncode == Exit.REFUSED
    assert str(daemon.process.pid) in done.stderr


def test_daemon_ends_on_sigterm_and_says_so_to_its_parent(house: House) -> None:
    with house.daemon("third-data") as daemon:
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(60) == -signal.SIGTERM
