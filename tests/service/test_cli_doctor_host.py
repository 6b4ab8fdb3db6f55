"""`headrace doctor` says what the host or the container withholds, and how each one grants it."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.service.cli import doctor, doctor_host

MOUNTS = """\
22 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/l
23 22 0:21 / /tmp rw - tmpfs tmpfs rw
24 22 254:0 /srv/state /data rw,relatime - ext4 /dev/vda rw
25 22 254:1 / /data/deep\\040er rw - xfs /dev/vdb rw
"""


def lay_out(root: Path, *files: str) -> Path:
    for file in files:
        root.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
        root.joinpath(file).touch()
    return root


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv"])
def test_a_container_is_known_by_its_mark(tmp_path: Path, mark: str) -> None:
    assert not doctor_host.in_container(tmp_path, {})
    assert doctor_host.in_container(tmp_path, {"container": "podman"})
    assert doctor_host.in_container(lay_out(tmp_path, mark), {})


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/jobs", "ext4"),
        ("/data/deep er/x", "xfs"),
        ("/database", "overlay"),
        ("/tmp", "tmpfs"),
    ],
)
def test_the_innermost_mount_of_a_path_is_found(path: str, kind: str) -> None:
    assert doctor_host.mount_type(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(("path", "verdict"), [("/data", "pass"), ("/lost", "fail")])
def test_data_that_ends_with_the_container_is_a_failure(
    tmp_path: Path, path: str, verdict: str
) -> None:
    lay_out(tmp_path, "proc/self/mountinfo").joinpath("proc/self/mountinfo").write_text(MOUNTS)
    check = doctor_host.check_data_mount(Path(path), root=tmp_path)
    assert check.verdict == verdict and ("docker run -v" in check.fix) == (verdict == "fail")


@pytest.mark.parametrize(("inside", "way"), [(True, "--ulimit"), (False, "LimitMEMLOCK")])
def test_a_limit_of_locked_memory_is_mended_where_it_is_set(inside: bool, way: str) -> None:
    check = doctor_host.check_locked_memory(inside=inside, limit=8 << 20)
    assert check.verdict == "warn" and way in check.fix and "MB" in check.found
    assert doctor_host.check_locked_memory(inside=inside, limit=-1).verdict == "pass"


@pytest.mark.parametrize(("limit", "verdict"), [(-1, "pass"), (1 << 20, "pass"), (1024, "warn")])
def test_few_open_files_are_a_warning(limit: int, verdict: str) -> None:
    assert doctor_host.check_open_files(inside=False, limit=limit).verdict == verdict


def test_small_shared_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_host.check_shared_memory(inside=True, root=tmp_path).verdict == "warn"
    tmp_path.joinpath("dev/shm").mkdir(parents=True)
    for size, verdict in ((64 << 20, "warn"), (8 << 30, "pass")):
        state = SimpleNamespace(f_blocks=size, f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda path, state=state: state)
        assert doctor_host.check_shared_memory(inside=True, root=tmp_path).verdict == verdict


def test_no_place_for_temporary_files_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_host.check_scratch().verdict == "pass"

    def nowhere() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    check = doctor_host.check_scratch()
    assert check.verdict == "fail" and "--tmpfs /tmp" in check.fix


def test_a_driver_without_devices_names_the_option_that_passes_them(tmp_path: Path) -> None:
    def check(*, gpu: bool, inside: bool = True) -> doctor.Check:
        return doctor_host.check_gpu_devices(inside=inside, gpu=gpu, root=tmp_path)

    assert check(gpu=False).verdict == "pass" and check(gpu=True).verdict == "warn"
    lay_out(tmp_path, "proc/driver/nvidia/version")
    assert (
        "--gpus all" in check(gpu=False).fix and "nvidia-smi" in check(gpu=False, inside=False).fix
    )
    lay_out(tmp_path, "dev/nvidia0")
    assert check(gpu=True).verdict == "pass"


def test_nvidia_fs_that_is_not_passed_on_is_a_warning(tmp_path: Path) -> None:
    assert "optional" in doctor_host.check_gds_devices(inside=True, root=tmp_path).found
    lay_out(tmp_path, "proc/driver/nvidia-fs/version")
    check = doctor_host.check_gds_devices(inside=True, root=tmp_path)
    assert check.verdict == "warn" and "NVIDIA_GDS=enabled" in check.fix
    lay_out(tmp_path, "dev/nvidia-fs0")
    assert doctor_host.check_gds_devices(inside=True, root=tmp_path).verdict == "pass"


def test_a_data_directory_mounted_read_only_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    check = doctor.check_data_dir(tmp_path)
    assert check.verdict == "fail" and "mounted read-only" in check.found


def test_doctor_asks_for_a_gpus_needs_only_where_one_is_used(tmp_path: Path) -> None:
    def names(device: str) -> set[str]:
        gpu = device == "cuda"
        return {check.name for check in doctor_host.check_host(tmp_path, device=device, gpu=gpu)}

    asked = {"locked memory", "shared memory", "GPU devices", "nvidia-fs"}
    assert asked <= names("cuda") and not asked & names("cpu")
    assert {"temporary files", "open files"} <= names("cpu")
