"""The first job on a box measures it within the memory that the job itself takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from datasets import write_dataset
from headrace.engine import TrainConfig, shape_spec
from headrace.engine.measure_memory import MeasuringSizes, measuring_bytes
from headrace.engine.packing import RowLengths
from headrace.service.child import WORKER_ENVIRONMENT
from tiny import VOCAB_SIZE, make_tiny_llama

MIB = 2**20
PROMISED_BYTES = 100 * MIB  # beyond the plan
RUN = """
import json, sys
from pathlib import Path
from bench.watch import memory, reset_peak
from headrace.engine import measure_box, run, trainer
from headrace.storage import calibrate
from runs import Run
measure_box.PART_SECONDS = {False: 0.0, True: 0.0}
calibrate.SECONDS = 0.2
one = Run(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), calibrate=True, max_steps=2)
base = memory()["VmRSS"]
reset_peak()
one.go()
(plan,) = [event.data for event in one.events if event.type == "plan"]
print(json.dumps({
    "peak": memory()["VmHWM"] - base,
    "planned": plan["total_device_bytes"] + plan["total_host_bytes"],
    "measured": [event.message for event in one.events if "measuring" in (event.message or "")],
}))
"""


def test_a_first_job_stays_within_its_plan_while_it_measures_the_box(tmp_path: Path) -> None:
    model, dataset = tmp_path / "model", tmp_path / "dataset"
    make_tiny_llama(model, tied=True, seed=0, hidden=256, layers=4)
    write_dataset(dataset, [100] * 12, vocab=VOCAB_SIZE)
    environment = {**os.environ, **WORKER_ENVIRONMENT}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", RUN, str(tmp_path / "run"), str(model), str(dataset)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["measured"]) == 2  # the volume and the machine
    assert found["peak"] <= found["planned"] + PROMISED_BYTES


def test_with_little_memory_fewer_layers_lie_about_and_long_microbatches_are_left_out() -> None:
    spec, config = shape_spec("smollm2-135m"), TrainConfig(model="m", dataset="d")
    free = MeasuringSizes(spec, config, None)
    assert (free.num_copies(64, 128), free.num_kept(4, 1024)) == (4, 4) and free.fits(4, 1024)
    assert free.num_records(spec.of_kind("layer")[0]) == 3
    tight = MeasuringSizes(spec, config, 200 * MIB)
    assert tight.num_copies(64, 128) == 1 and tight.num_kept(1, 1024) == 1
    assert not MeasuringSizes(spec, config, 100 * MIB).fits(1, 1024)
    assert MeasuringSizes(spec, config, 150 * MIB).num_records(spec.of_kind("layer")[0]) == 2


def test_what_may_be_taken_is_what_the_run_takes_at_least() -> None:
    """Longer rows and larger models take more, and so may calibration for them."""

    def allowed(shape: str, tokens: int) -> int:
        config = TrainConfig(model="m", dataset="d", batch_rows=2)
        lengths = RowLengths(training=np.full(4, tokens))
        return measuring_bytes(shape_spec(shape), config, lengths)

    assert 64 * MIB < allowed("tiny", 64) < allowed("tiny", 512) < allowed("smollm2-135m", 512)
