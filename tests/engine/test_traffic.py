"""Law 5: what the counters say was moved is what the plan says must move."""

from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine import read_model_spec
from runs import Run
from tiny import make_tiny_llama


def _plan(run: Run) -> dict[str, Any]:
    (event,) = [event for event in run.events if event.type == "plan"]
    return event.data


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"clip_way": "serial"}, "serial"),
        ({"clip_way": "speculative", "max_grad_norm": 1e9}, "speculative"),
        ({"clip_mode": "per_layer"}, "speculative"),
        ({"clip_way": "serial", "recompute": "none"}, "serial"),
        ({"clip_way": "serial", "state_format": "q8"}, "serial"),
        ({"clip_way": "serial", "state_format": "sr_bf16"}, "serial"),
        ({"clip_mode": "per_layer", "state_format": "sr_q8"}, "speculative"),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_every_step_moves_what_the_plan_says(
    tmp_path: Path, tied: bool, settings: dict[str, Any], way: str
) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=tied, seed=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30], vocab=384)
    run = Run(tmp_path, model, dataset, **{"recompute": "all", **settings})
    run.go()
    planned = _plan(run)["link_bytes"][way]
    assert planned["nvme_write"] > 0
    for step in run.metrics():
        links = step["links"]
        for link in ("nvme_read", "nvme_write"):
            assert links[link]["payload_bytes"] == planned[link]
        # Kept gradients cross the device's links too: 4 bytes a parameter each way at most.
        for link in ("h2d", "d2h"):
            extra = links[link]["payload_bytes"] - planned[link]
            assert 0 <= extra <= 4 / 12 * _plan(run)["state_bytes"]["exact"]


def test_a_wrong_guess_reads_and_writes_the_state_once_more(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30], vocab=384)
    run = Run(tmp_path, model, dataset, clip_way="speculative", max_grad_norm=1e-3)
    run.go()
    planned = _plan(run)["link_bytes"]["speculative"]
    for step in run.metrics():
        links = step["links"]
        written = planned["nvme_write"]
        assert links["nvme_write"]["payload_bytes"] == 2 * written
        assert links["nvme_read"]["payload_bytes"] == planned["nvme_read"] + written


def test_a_deferred_update_reads_the_state_instead_of_the_weights(tmp_path: Path) -> None:
    """fp32 compute: 12 read and written in forward, 4 read in backward; no pass of its own.

    What is read ahead is counted with the step before: a step more is exact, a step's own is not.
    """
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30], vocab=384)
    settings: dict[str, Any] = {"clip_way": "deferred", "commit_every_steps": 5, "recompute": "all"}
    runs = []
    for steps in (4, 5):
        runs.append(Run(tmp_path / f"{steps}", model, dataset, max_steps=steps, **settings))
        runs[-1].go()
    plan = _plan(runs[1])["link_bytes"]
    read, written = plan["deferred"]["nvme_read"], plan["deferred"]["nvme_write"]
    assert read < plan["serial"]["nvme_read"]
    reads, writes = (
        [[step["links"][link]["payload_bytes"] for step in run.metrics()] for run in runs]
        for link in ("nvme_read", "nvme_write")
    )
    assert sum(reads[1]) - sum(reads[0]) == read
    ring = _plan(runs[1])["num_slots"] * _plan(runs[1])["slot_bytes"]
    assert all(abs(one - read) <= ring for one in reads[1][1:4])
    # Nothing is pending in the first step; the commit of the last applies what is.
    assert writes[1] == [0, written, written, written, 2 * written]


def test_state_in_host_memory_touches_the_drive_at_commits_alone(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30], vocab=384)
    settings: dict[str, Any] = {"commit_every_steps": 2, "optimizer_device": "device"}
    run = Run(tmp_path, model, dataset, state_tier="host", **settings)
    run.go()
    state_bytes = _plan(run)["link_bytes"]["serial"]["d2h"]
    steps = [step["links"] for step in run.metrics()]
    writes = [links["nvme_write"]["payload_bytes"] for links in steps]
    assert writes == [0, state_bytes, 0, state_bytes]
    assert [links["nvme_read"]["payload_bytes"] for links in steps] == [0] * 4
    assert [event.step for event in run.events if event.type == "commit"] == [2, 4]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("tied", [True, False])
def test_of_what_the_processor_updates_weights_go_up_and_gradients_down(
    tmp_path: Path, tied: bool, share: float
) -> None:
    """fp32 compute: 4 bytes of weights a visit and 4 of gradient; no moment crosses a link."""
    model = make_tiny_llama(tmp_path / "model", tied=tied, seed=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30], vocab=384)
    settings: dict[str, Any] = {"state_tier": "host", "clip_way": "serial", "recompute": "all"}
    run = Run(tmp_path, model, dataset, optimizer_host_share=share, num_slots=2, **settings)
    run.go()
    records = read_model_spec(str(model)).records
    on_host = _plan(run)["on_host"]
    assert len(on_host) == round(share * sum(record.kind == "layer" for record in records))
    planned = _plan(run)["link_bytes"]["serial"]
    up = down = grads_up = grads_down = 0
    for i, record in enumerate(records):
        visits = 2 if record.kind == "layer" else 1
        up += record.num_elements * (4 * visits + (0 if i in on_host else 12))
        down += 0 if i in on_host else 12 * record.num_elements
        if record.kind != "embedding":
            kept = record.num_params if record.kind == "head" else record.num_elements
            grads_down += 4 * kept
            grads_up += 0 if i in on_host else 4 * kept
    assert (planned["h2d"], planned["d2h"]) == (up, down)
    for step in run.metrics():
        moved = {link: step["links"][link]["payload_bytes"] for link in ("h2d", "d2h")}
        assert moved == {"h2d": up + grads_up, "d2h": down + grads_down}
