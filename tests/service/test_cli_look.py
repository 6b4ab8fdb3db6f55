"""The commands that look: the box, the state on disk, training rows, the speed of a step."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from command import run, run_json
from headrace.engine import CpuKernel
from headrace.service.cli import doctor
from headrace.service.cli.output import Exit
from headrace.storage import HostArena, RecordSpec, TensorSpec, TensorStore, VolumeConfig


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume with one committed store, `job`."""
    tmp_path.joinpath("volume").mkdir()
    config = VolumeConfig(path=tmp_path / "volume")
    weights = TensorSpec(name="hi", dtype="bfloat16", shape=(4096,))
    records = [RecordSpec(name="layers.0", tensors=(weights,))]
    with (
        TensorStore.create([config], records, name="job") as store,
        HostArena(1 << 21) as arena,
    ):
        slot = arena.carve(records[0].padded_bytes)
        slot.view[:] = b"\x07" * len(slot.view)
        store.begin(3)
        store.write_from("layers.0", slot).result()
        store.commit({})
    return config.path


def test_fsck_passes_sound_state(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run_json(capsys, "fsck", "--volume", volume)
    assert (code, found[0]["store"], found[0]["step"]) == (Exit.OK, "job", 3)


def test_fsck_finds_one_changed_byte(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = 0
    for path in filter(Path.is_file, volume.joinpath("job").rglob("*")):
        content = bytearray(path.read_bytes())
        at = content.find(b"\x07" * 4096)
        if at >= 0:
            content[at] ^= 1
            path.write_bytes(content)
            changed += 1
    assert changed == 1
    code, found = run_json(capsys, "fsck", "--volume", volume)
    assert code == Exit.FAILED and "layers.0" in found[0]["problems"][0]


def test_fsck_that_finds_nothing_says_where_it_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fsck", "--volume", tmp_path) == Exit.OK
    assert str(tmp_path) in capsys.readouterr().out


def test_fsck_of_a_missing_volume_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fsck", "--volume", tmp_path / "nowhere") == Exit.USAGE
    assert "nowhere" in capsys.readouterr().err


def test_doctor_names_what_a_volume_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--data-dir", tmp_path / "data", "--volume", tmp_path, "--device", "cpu")
    code, found = run_json(capsys, "doctor", *arguments)
    checks = {check["name"]: check for check in found}
    assert code == Exit.OK
    assert checks[f"volume {tmp_path}"]["found"].startswith(("direct: ", "buffered: "))
    assert {"python", "torch", "device", "compiler", "memory"} <= checks.keys()


def test_doctor_fails_with_the_fix_for_a_missing_volume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--data-dir", tmp_path, "--volume", tmp_path / "nowhere", "--device", "cpu")
    code, found = run_json(capsys, "doctor", *arguments)
    assert code == Exit.FAILED
    assert found[-1]["verdict"] == "fail" and "--volume" in found[-1]["fix"]


def test_directory_of_no_use_is_named_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run("doctor", "--data-dir", tmp_path / "file", "--device", "cpu") == Exit.FAILED
    assert f"{tmp_path / 'file'}" in capsys.readouterr().err


def test_doctor_judges_memory_by_what_the_control_groups_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = SimpleNamespace(limit_bytes=10**9, free_bytes=10**8)
    monkeypatch.setattr("headrace.engine.box.tightest_group", lambda: group)
    check = doctor.check_memory()
    assert check.verdict == "warn" and "100 MB available by the limit" in check.found


def test_doctor_warns_where_updates_on_the_cpu_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert doctor.check_cpu_optimizer().verdict == "pass"
    kernel = CpuKernel(form="chunked", why="numba cannot be used (No module named 'numba')")
    monkeypatch.setattr("headrace.engine.adamw_cpu.cpu_kernel", lambda: kernel)
    check = doctor.check_cpu_optimizer()
    assert check.verdict == "warn" and kernel.why in check.found and "pip install" in check.fix


SMALL = ("--layers", "2", "--tokens-per-row", "8", "--batch-rows", "2", "--microbatch-rows", "1",
         "--steps", "1")  # fmt: skip


def test_bench_step_times_each_number_of_slots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run_json(
        capsys, "bench", "step", *SMALL, "--volume", tmp_path, "--throttle", "1GB"
    )
    assert code == Exit.OK and found["runs"].keys() == {"1", "3"}
    assert found["runs"]["3"]["link_bytes"]["nvme_write"] >= 12 * found["num_params"]
    assert found["box"]["torch"] and list(tmp_path.iterdir()) == []


def test_bench_step_without_durability_writes_nothing_of_what_memory_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run_json(
        capsys, "bench", "step", "--shape", "tiny", "--init", "random", "--durability", "none",
        "--state-tier", "host", "--slots", "2", *SMALL, "--volume", tmp_path,
        "--optimizer-device", "device",
    )  # fmt: skip
    (timed,) = found["runs"].values()
    assert code == Exit.OK and timed["commit_seconds"] == 0
    assert timed["link_bytes"]["nvme_write"] == timed["link_bytes"]["nvme_read"] == 0
    assert timed["link_bytes"]["h2d"] > 2 * found["num_params"]


def test_bench_step_tells_what_the_processor_updated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run_json(
        capsys, "bench", "step", "--durability", "none", "--state-tier", "host", "--slots", "2",
        *SMALL, "--volume", tmp_path, "--optimizer-host-share", "0.5",
    )  # fmt: skip
    (timed,) = found["runs"].values()
    assert code == Exit.OK and len(timed["placement"]["on_host"]) == 1
    updates = timed["host_optimizer"]
    assert updates["num_updates"] == 2 and updates["traffic_bytes"] == 28 * updates["num_elements"]


def test_bench_step_tells_people_how_far_it_is_and_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_OUTPUT", "text")
    adapters = ("--method", "lora", "--frozen-format", "nf4", "--slots", "2")
    assert run("bench", "step", *SMALL, *adapters, "--volume", tmp_path) == Exit.OK
    shown = capsys.readouterr().out
    assert "random weights: record 0 of 9" in shown and "step 2 of 2" in shown
    assert "tokens/s" in shown and "a step and its commit wrote frozen 0 B, weights" in shown


@pytest.mark.parametrize(
    "wrong", [("--init", "zeros"), ("--durability", "some"), ("--state-tier", "tape")]
)
def test_bench_step_refuses_what_it_cannot_do(
    wrong: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "step", *SMALL, *wrong, "--volume", tmp_path) == Exit.USAGE
    assert wrong[1] in capsys.readouterr().err


def test_bench_step_of_an_unknown_shape_lists_the_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "step", "--shape", "huge", "--volume", tmp_path) == Exit.USAGE
    assert "smollm2-135m" in capsys.readouterr().err
