"""The page over a real daemon and a real, tiny run: what it shows is what the engine measures."""

import socket
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from browser import Browser, browser, needs_browser
from headrace.engine import write_demo_data
from headrace.service.client import Client
from running_daemon import RunningDaemon, running_daemon
from tiny import make_tiny_llama

pytestmark = needs_browser

STEPS = 30
CURVE = "return document.querySelector('#loss .c-train:not(.faint)').getAttribute('d')"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("real")
    make_tiny_llama(home / "models" / "tiny", tied=True, seed=3, hidden=96, layers=4)
    write_demo_data(home / "rows")
    return home


def serve(home: Path, port: int) -> AbstractContextManager[RunningDaemon]:
    budgets = ["--device-bytes", "200MB", "--host-bytes", "40MB"]
    return running_daemon(home / "data", home / "models", ["--port", str(port), *budgets])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def submit(client: Client, home: Path) -> str:
    """A job with an evaluation in its middle; its id."""
    files = {
        param: client.upload(home / "rows" / f"{name}.jsonl")["id"]
        for param, name in (("training_file", "train"), ("validation_file", "valid"))
    }
    settings = {"max_steps": STEPS, "batch_size": 8, "eval_every": 10, "n_epochs": 50,
                "sample_rows": 2, "sample_tokens": 4}  # fmt: skip
    method = {"type": "supervised", "supervised": {"hyperparameters": settings}}
    return str(client.create_job({"model": "tiny", "method": method, **files})["id"])


def step(window: Browser) -> int:
    told = window.text(".num[data-v='engine'][data-as='steps']")
    return int(told.split()[0]) if " of " in told else 0


def test_a_page_shows_what_is_measured_and_outlives_a_killed_daemon(home: Path) -> None:
    port = free_port()
    with serve(home, port) as daemon, browser(daemon.url, home) as window:
        with Client(daemon.url) as client:
            job_id = submit(client, home)
        window.open(f"/jobs/{job_id}")
        window.until(lambda: step(window) >= 2, 60)

        window.until(lambda: "bars show" not in window.text("#step-told"))
        assert window.script("return document.querySelectorAll('#lanes .f-backward').length")
        window.until(lambda: window.text("#tiers-told") == "now")
        assert "/s" in window.text("[data-flow='h2d'] .told")
        window.script("document.getElementById('preview-training_file').open = true")
        marked = window.text("#preview-training_file mark")
        assert marked and "<|im_start|>user" not in marked, "what is asked is not trained on"

        daemon.kill()
        window.until(lambda: window.text("#live") == "reconnecting")
        before = step(window)
        assert before < STEPS, "the run was over too soon for this test"
        with serve(home, port) as again:
            window.until(lambda: step(window) > before, 60)
            window.until(lambda: window.text("[data-part='head'] .state") == "succeeded", 60)
            window.until(lambda: str(window.script(CURVE)).count("L") == STEPS - 1)
            with Client(again.url) as client:
                made = client.job(job_id)["fine_tuned_model"]
                told = [one["step_number"] for one in client.samples(job_id)]
                assert client.row_losses(job_id)["step_number"] == STEPS
            assert told == [STEPS, 20, 10, 0]
            newest = f"written by the weights of step {STEPS}"
            window.until(lambda: newest in window.text("[data-part='samples']"))
            window.until(lambda: made in window.text("[data-part='made']"))
        # While no daemon answered, the browser noted that.
        assert [said for said in window.complaints() if "net::ERR_" not in said] == []
        assert window.strangers() == []
