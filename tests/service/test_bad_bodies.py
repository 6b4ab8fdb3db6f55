"""Refusals of bodies name the field where the request has it, what was sent, what is wanted."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from scripted_service import ROWS, scripted_service, write_house

JOBS = "/v1/fine_tuning/jobs"
OLD, NEW, DPO = "hyperparameters", "method.supervised.hyperparameters", "method.dpo.hyperparameters"
RATE = "learning_rate_multiplier"
Case = tuple[Any, str | None, str]  # changes of a good body, the param, a part of the message


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    home = tmp_path_factory.mktemp("bad")
    write_house(home, {"steps": 3, "step_seconds": 0})
    with scripted_service(home) as served, httpx2.Client(base_url=served.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def good(client: httpx2.Client) -> dict[str, Any]:
    """A body that is taken."""
    file = client.post("/v1/files", data={"purpose": "fine-tune"}, files=ROWS).json()
    return {"model": "tiny", "training_file": file["id"]}


def old(**hyperparameters: Any) -> dict[str, Any]:
    """The deprecated form."""
    return {"hyperparameters": hyperparameters}


def new(**hyperparameters: Any) -> dict[str, Any]:
    """Of the supervised method."""
    return {"method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}}


def dpo(**hyperparameters: Any) -> dict[str, Any]:
    """Of the dpo method."""
    return {"method": {"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}}


def lora(**adapter: Any) -> dict[str, Any]:
    """An adapter in the deprecated form."""
    return old(adapter={"type": "lora", **adapter})


BAD: list[Case] = [
    ({"model": "nope"}, "model", "'nope'"),
    ({"model": None}, "model", "Missing"),
    ({"model": "auto"}, "model", "Missing"),
    ({"training_file": 3}, "training_file", "is 3; wanted text"),
    ({"training_file": "file-x"}, "training_file", "'file-x' does not exist"),
    ({"suffix": "a" * 65}, "suffix", "wanted 64 or fewer characters"),
    ({"seed": -1}, "seed", "is -1; wanted a whole number from 0 to 2147483647"),
    ({"seed": 1.5}, "seed", "is 1.5; wanted a whole number"),
    ({"metadata": {"a": 3}}, "metadata.a", "is 3; wanted text"),
    ({"metadata": {"query": 3}}, "metadata.query", "is 3; wanted text"),
    ({"metadata": {"body": 3}}, "metadata.body", "is 3; wanted text"),
    ({"metadata": {"list[x": 3}}, "metadata.list[x", "is 3; wanted text"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "wanted 16 or fewer"),
    ({"integrations": [{"type": "wandb"}]}, "integrations.0.type", "wanted 'tensorboard'"),
    ({"integrations": [{"type": "tensorboard", "x": 1}]}, "integrations.0.x", "Known: type"),
    ({"method": {"type": "reinforcement"}}, "method.type", "wanted 'supervised' or 'dpo'"),
    ({"method": {"type": "dpo", "dpo": 3}}, "method.dpo", "is 3; wanted an object"),
    (old(n_epochs=0), f"{OLD}.n_epochs", "is 0; wanted a whole number from 1 to 50"),
    (old(n_epochs="many"), f"{OLD}.n_epochs", "is 'many'; wanted a whole number from 1 to 50"),
    (old(epochs=3), f"{OLD}.epochs", f"Did you mean '{NEW}.n_epochs'?"),
    (old(max_seq_len=9999), f"{OLD}.max_seq_len", "is 9999; the model takes at most 512"),
    (old(freeze=["x"]), f"{OLD}.freeze", "'x' is the name of no parameter"),
    (old(**{RATE: 1e9}), f"{OLD}.{RATE}", "wanted a rate above 0 and below 10"),
    (old(early_stopping={}), f"{OLD}.early_stopping.patience", "Missing"),
    (old(checkpoint_every={"step": 1}), f"{OLD}.checkpoint_every.step", ".steps'?"),
    (old(router_aux_loss_coef=0.1), f"{OLD}.router_aux_loss_coef", "no experts"),
    (lora(target_modules=["x"]), f"{OLD}.adapter.target_modules", "'x' is the name of no"),
    (lora(target_modules="("), f"{OLD}.adapter.target_modules", "'(' is no expression"),
    (lora(target_modules="(.+)+X"), f"{OLD}.adapter.target_modules", "takes too long"),
    (lora(target_modules="(x)" * 200), f"{OLD}.adapter.target_modules", "wanted 500 or fewer"),
    (lora(target_modules=["x"] * 101), f"{OLD}.adapter.target_modules", "100 or fewer of them"),
    (old(freeze=["x"] * 101), f"{OLD}.freeze", "wanted 100 or fewer of them"),
    (old(freeze=["*" * 201]), f"{OLD}.freeze.0", "wanted 200 or fewer characters"),
    (lora(target_modules=3), f"{OLD}.adapter.target_modules", "is 3; wanted text or a list"),
    (lora(target_modules=["a", 3]), f"{OLD}.adapter.target_modules.1", "is 3; wanted text"),
    (lora(dropout=0.1), f"{OLD}.adapter.dropout", "is 0.1; layers are computed twice"),
    (lora(base="nf4"), f"{OLD}.adapter.base", "is 'nf4', which is of type qlora"),
    (new(n_epochs=51), f"{NEW}.n_epochs", "is 51; wanted a whole number from 1 to 50"),
    (new(lr_scheduler="cos"), f"{NEW}.lr_scheduler", "wanted 'linear', 'cosine' or 'constant'"),
    (new(row_losses="yes"), f"{NEW}.row_losses", "is 'yes'; wanted true or false"),
    (new(sample_prompts=[""]), f"{NEW}.sample_prompts.0", "is ''; wanted 1 or more characters"),
    (new(learning_rate=10), f"{NEW}.learning_rate", "is 10; wanted a number above 0 and below 10"),
    (new(keep_best=1), f"{NEW}.keep_best", "give a validation_file"),
    (new(eval_every=1), f"{NEW}.eval_every", "needs a validation_file"),
    (new(max_grad_norm=1.0, clip_mode="none"), f"{NEW}.max_grad_norm", "leave one of them out"),
    (
        old(max_grad_norm=0.5, clip_mode="none"),
        f"{OLD}.max_grad_norm",
        "is 0.5, but clip_mode none",
    ),
    (new(beta=0.1), f"{NEW}.beta", "is of method dpo"),
    (dpo(beta=0), f"{DPO}.beta", "is 0; wanted a number above 0 and of at most 2"),
    (dpo(beta="x"), f"{DPO}.beta", "is 'x'; wanted a number"),
    (dpo(n_epoch=3), f"{DPO}.n_epoch", f"Did you mean '{DPO}.n_epochs'?"),
    (dpo(checkpoint_every={}), f"{DPO}.checkpoint_every", "give one of them"),
    (dpo(), "training_file", "wanted chosen, rejected"),
    ({"durability": "always"}, "durability", "is 'always'; wanted 'step', 'none'"),
    ({"durability": {"steps": 0}}, "durability.steps", "is 0; wanted a whole number from 1"),
    ({"durability": {"hours": 1}}, "durability.hours", "Known: minutes, steps"),
    ({"limits": {"max_hours": 0}}, "limits.max_hours", "is 0; wanted a number above 0"),
    ({"limits": {"max_bytes_written": 0}}, "limits.max_bytes_written", "is 0; wanted a whole"),
    ({"limits": {"max_wear_share": 1e-9}}, "limits.max_wear_share", "max_wear_share is 1e-09"),
    ({"export": [{"format": "onnx"}]}, "export.0.format", "wanted 'hf', 'adapter' or 'gguf'"),
    ({"export": [{"dtype": "q8_0"}]}, "export.0.dtype", "of format gguf; format is hf"),
    ({"export": []}, "export", "is []; wanted 1 or more"),
    ({"dataset": {"columns": {"a": "b"}}}, "dataset.columns", "'a', which is no key"),
    ({"dataset": {"columns": {"prompt": 3}}}, "dataset.columns.prompt", "is 3; wanted text"),
    ({"dataset": {"format": "x"}}, "dataset.format", "cannot be set"),
    ({"strategy": "fast"}, "strategy", "is 'fast'; wanted 'auto', 'resident'"),
    ({"device_bytes": 1}, "device_bytes", "cannot fit"),
    ({"host_bytes": 1}, "host_bytes", "cannot fit"),
    ({"host_bytes": "1GB"}, "host_bytes", "is '1GB'; wanted a whole number from 0"),
    ({"priority": 1001}, "priority", "is 1001; wanted a whole number from -1000 to 1000"),
    ({"dry_run": "yes"}, "dry_run", "is 'yes'; wanted true or false"),
    ({"resume_from": "nope"}, "resume_from", "'nope'"),
    ({"chat_template": "x"}, "chat_template", "cannot be set"),
    ([], None, "must be a JSON object"),
    (b"{", None, "not valid JSON"),
    (b'{"seed": 1' + b"0" * 5000 + b"}", None, "as JSON"),
    (b'{"model": "\xff"}', None, "as JSON"),
]


@pytest.mark.parametrize("path", [JOBS, "/v1/fine_tuning/plans"])
@pytest.mark.parametrize(("changes", "param", "said"), BAD)
def test_a_refusal_names_the_field_what_was_sent_and_what_is_wanted(
    client: httpx2.Client, good: dict[str, Any], path: str, changes: Any, param: str, said: str
) -> None:
    body = good | changes if isinstance(changes, dict) else changes
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=raw, headers={"content-type": "application/json"})
    found = answer.json()["error"]
    assert (answer.status_code, found["param"]) == (400, param), found["message"]
    assert said in found["message"] and found["code"]


def test_a_job_that_cannot_fit_is_told_in_the_words_of_jobs(
    client: httpx2.Client, good: dict[str, Any]
) -> None:
    for changes in ({"device_bytes": 1}, {"limits": {"max_wear_share": 1e-9}}):
        found = client.post("/v1/fine_tuning/plans", json=good | changes).json()["error"]
        said = found["message"] + found.get("hint", "")
        assert "batch_size" in said or "limits.max_wear_share" in said
        for engines in ("batch_rows", "microbatch_rows", "longest_row", " max_wear", "--"):
            assert engines not in said


UPLOAD = {"bytes": 1, "filename": "a", "mime_type": "b", "purpose": "fine-tune"}
EXPIRY = {"anchor": "created_at", "seconds": 3600}
ELSEWHERE: list[tuple[str, Any, str | None, str]] = [
    ("/v1/uploads", {}, "bytes", "Missing"),
    ("/v1/uploads", UPLOAD | {"bytes": 0}, "bytes", "is 0; wanted a whole number from 1"),
    ("/v1/uploads", UPLOAD | {"filename": ""}, "filename", "is ''; wanted 1 or more characters"),
    ("/v1/uploads", UPLOAD | {"purpose": "x"}, "purpose", "is 'x'; wanted 'fine-tune'"),
    ("/v1/uploads", UPLOAD | {"size": 1}, "size", "Unknown field 'size'"),
    ("/v1/uploads", UPLOAD | {"expires_after": EXPIRY | {"seconds": 5}}, "expires_after.seconds",
     "is 5; wanted a whole number from 3600 to 2592000"),
    ("/v1/uploads", UPLOAD | {"expires_after": EXPIRY | {"anchor": "now"}},
     "expires_after.anchor", "is 'now'; wanted 'created_at'"),
    ("/v1/uploads/upload_x/complete", {"part_ids": []}, "part_ids", "is []; wanted 1 or more"),
    ("/v1/uploads/upload_x/complete", {"part_ids": ["a"], "md5": "x"}, "md5", "is 'x'; wanted"),
    (f"{JOBS}/ftjob-x/resume", {"limit": {}}, "limit", "Did you mean 'limits'?"),
    (f"{JOBS}/ftjob-x/resume", {"limits": {"max_hours": -1}}, "limits.max_hours", "is -1; wanted"),
    (f"{JOBS}/ftjob-x/resume", [], None, "must be a JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param", "said"), ELSEWHERE)
def test_a_refusal_of_another_route_says_it_too(
    client: httpx2.Client, path: str, body: Any, param: str | None, said: str
) -> None:
    answer = client.post(path, json=body)
    found = answer.json()["error"]
    assert (answer.status_code, found["param"]) == (400, param), found["message"]
    assert said in found["message"] and found["code"]


LISTS = (JOBS, f"{JOBS}/ID/events", f"{JOBS}/ID/checkpoints", f"{JOBS}/ID/samples", "/v1/files")
QUERIES = [
    *((path, "limit", bad) for path in LISTS for bad in ("0", "-1", "100000", "x", "", "1.5")),
    *((path, "after", "nope") for path in LISTS),
    *((f"{JOBS}/ID/series", name, bad) for name in ("first", "last", "points") for bad in "-x"),
    (f"{JOBS}/ID/series", "points", "1"),
    (f"{JOBS}/ID/series", "first", "-1"),
    (f"{JOBS}/ID/events/stream", "last_event_id", "-1"),
    (f"{JOBS}/ID/events/stream", "metrics_per_second", "0"),
    ("/v1/files", "order", "up"),
    (JOBS, "metadata", "x"),
]
RANGES = {"limit": "from 1 to 1000", "points": "from 2 to 5000", "order": "'asc' or 'desc'",
          "first": "from 0 to", "last": "from 0 to", "after": "not on this list",
          "metrics_per_second": "above 0 and of at most 1000", "last_event_id": "from 0 to",
          "metadata": "metadata[key]=value"}  # fmt: skip


@pytest.fixture(scope="module")
def job_id(client: httpx2.Client, good: dict[str, Any]) -> str:
    """A job whose lists are asked for."""
    return str(client.post(JOBS, json=good).json()["id"])


@pytest.mark.parametrize(("path", "name", "value"), QUERIES)
def test_a_query_out_of_range_is_told_the_range(
    client: httpx2.Client, job_id: str, path: str, name: str, value: str
) -> None:
    answer = client.get(path.replace("ID", job_id), params={name: value})
    found = answer.json()["error"]
    assert (answer.status_code, found["param"], found["code"]) == (400, name, "invalid_value")
    assert RANGES[name] in found["message"] and repr(value) in found["message"]


@pytest.mark.parametrize("query", ["metadata[]=x", "metadata[a=x", "metadata=", "metadataa=null"])
def test_a_filter_that_is_none_is_refused_and_not_left_out(
    client: httpx2.Client, query: str
) -> None:
    found = client.get(f"{JOBS}?{query}").json()["error"]
    assert found["param"] == "metadata" and "metadata[key]=value" in found["message"]


def test_more_pairs_than_a_job_can_have_are_refused(client: httpx2.Client) -> None:
    pairs = {f"metadata[{i}]": "x" for i in range(17)}
    found = client.get(JOBS, params=pairs).json()["error"]
    assert found["param"] == "metadata" and "17 pairs; a job has 16 at most" in found["message"]
