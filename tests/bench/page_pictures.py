"""Pictures of the page over a real run that streams from the drive, for deploy/docs/pictures.

Wants chromium and chromedriver; fonts are those of this machine. A picture that comes out larger
than it may be in the repository is told, and the exit status is 1.
"""

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from browser import DESKTOP, PHONE, Browser, Theme, browser
from headrace.engine import write_demo_data
from headrace.service.client import Client
from running_daemon import running_daemon
from tiny import make_tiny_llama

MAX_BYTES = 150_000
SIZES = {"desktop": DESKTOP, "phone": PHONE}
THEMES: Sequence[Theme] = ("light", "dark")
# The state of the model does not fit the memory that jobs may take: the drive carries it.
BUDGETS = ("--device-bytes", "200MB", "--host-bytes", "24MB")
STEPS = 400
SEEN_STEPS = 40  # before the first picture


def main() -> int:
    """One daemon, one run, and a picture of every page in every size and theme."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a folder; pictures in it are replaced")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        home = Path(folder)
        (home / "nvme0").mkdir()
        make_tiny_llama(home / "models" / "river-small", tied=True, seed=3, hidden=192, layers=8)
        rows = write_rows(home / "rows")
        volume = ("--volume", str(home / "nvme0"))
        with (
            running_daemon(home / "data", home / "models", (*BUDGETS, *volume)) as daemon,
            Client(daemon.url) as client,
            browser(daemon.url, home) as window,
        ):
            files = [client.upload(path)["id"] for path in rows]
            job_id = start_jobs(client, files)
            wait_for(client, job_id, SEEN_STEPS)
            for size, theme in itertools.product(SIZES, THEMES):
                take_all(window, out, job_id, files, size=size, theme=theme)
    return tell(out)


def write_rows(folder: Path) -> tuple[Path, Path]:
    """Conversations of one to nine turns out of the demo's questions."""
    demo = write_demo_data(folder)
    rng = random.Random(1)
    asked = [json.loads(line)["messages"] for line in demo.train.read_text().splitlines()]
    rows = []
    for _ in range(240):
        picked = rng.sample(asked, k=min(9, 1 + int(rng.expovariate(0.5))))
        turns = [turn for messages in picked for turn in messages if turn["role"] != "system"]
        rows.append({"messages": [asked[0][0], *turns]})
    demo.train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return demo.train, demo.valid


def start_jobs(client: Client, files: Sequence[str]) -> str:
    """One that is refused for rows that are too long, one that runs, one that waits.

    The id of the second.
    """

    def create(suffix: str, **settings: Any) -> str:
        method = {"type": "supervised", "supervised": {"hyperparameters": settings}}
        body = {"model": "river-small", "suffix": suffix, "method": method}
        training, validation = files
        names = {"training_file": training, "validation_file": validation}
        return str(client.create_job({**body, **names})["id"])

    create("first try", max_steps=3)
    job_id = create(
        "gazetteer", max_steps=STEPS, batch_size=8, n_epochs=50, learning_rate=1e-3,
        eval_every=10, checkpoint_every={"steps": 15}, keep_last=3, overlong="truncate_right",
    )  # fmt: skip
    create("next", max_steps=100, overlong="truncate_right")
    return job_id


def wait_for(client: Client, job_id: str, step: int) -> None:
    """Wait until the job has done so many steps."""
    while ((job := client.job(job_id))["engine"].get("step") or 0) < step:
        assert job["status"] not in ("failed", "cancelled"), job["error"]
        time.sleep(0.2)


def take_all(
    window: Browser, out: Path, job_id: str, files: Sequence[str], *, size: str, theme: Theme
) -> None:
    """Every page in that size and theme."""
    window.look(*SIZES[size], theme)

    def take(name: str) -> None:
        time.sleep(1.5)  # the newest numbers, and what moves on the page
        window.driver.save_screenshot(str(out / f"{name}-{size}-{theme}.png"))

    window.open("/")
    window.until(lambda: window.find("#spark svg"))
    take("overview")
    window.open(f"/jobs/{job_id}")
    window.until(lambda: window.find("#loss svg"))
    take("job")
    window.until(lambda: "bars show" not in window.text("#step-told"))
    time.sleep(1.5)
    part = window.picture_of("#step-title", "#tiers-title")
    (out / f"step-{size}-{theme}.png").write_bytes(part)
    window.open("/new")
    for field, value in (("model", "river-small"), ("training_file", files[0])):
        window.script(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}))",
            field,
            value,
        )
    window.until(lambda: window.find("#submit").is_enabled())
    if size == "phone":
        window.script("document.getElementById('plan-title').scrollIntoView(); scrollBy(0, -90)")
    take("new")


def tell(out: Path) -> int:
    """Name the pictures and those that are too large."""
    status = 0
    for path in sorted(out.glob("*.png")):
        num_bytes = path.stat().st_size
        fault = "" if num_bytes <= MAX_BYTES else f", over {MAX_BYTES}"
        status = 1 if fault else status
        print(f"{path.name}: {num_bytes} bytes{fault}")
    return status


if __name__ == "__main__":
    sys.exit(main())
