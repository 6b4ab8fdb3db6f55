"""GPUDirect Storage: never claimed without proof, never a hang, and every byte checked.

All of it runs on a fake of kvikio's interface. What a real driver does is not shown here.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_kvikio import FakeKvikio, Road, bindings
from headrace.storage import (
    Corrupt,
    DeviceSlab,
    HostSlot,
    IoFailed,
    Misuse,
    StoreError,
    TensorStore,
    VolumeConfig,
    VolumeStatus,
    gds,
    gds_probe,
    probe_gds,
    probe_volume,
)
from headrace.storage.slab import DeviceSlot, DeviceView
from headrace.storage.volume import Volume
from store_cases import fill, payload, small_records, volumes_in

RECORDS = small_records(2)
NVFS = "proc/driver/nvidia-fs/"


class _OnFakeDevice(DeviceSlot):
    """CPU memory that only kvikio may reach."""

    on_device = True

    @property
    def view(self) -> Any:
        return _FakeView(self._bytes, self._after)


class _FakeView(DeviceView):
    @property
    def __cuda_array_interface__(self) -> Any:
        return {"data": (self._tensor.data_ptr(), False)}

    def __getitem__(self, part: slice) -> "_FakeView":
        return _FakeView(self._tensor[part], self._after)


@pytest.fixture
def kvikio() -> FakeKvikio:
    return FakeKvikio()


@pytest.fixture
def volumes(tmp_path: Path) -> list[VolumeConfig]:
    return volumes_in(tmp_path)


@pytest.fixture
def store(volumes: list[VolumeConfig], kvikio: FakeKvikio) -> Iterator[TensorStore]:
    """A store whose volume has GDS, as the fake has it."""

    def open_volume(status: VolumeStatus, path: Path, read_only: bool) -> Volume:
        return gds.GdsVolume(path, kvikio, read_only=read_only)

    with TensorStore.create(
        volumes, RECORDS, name="job", reserve_bytes=0, open_volume=open_volume
    ) as store:
        drives = store._drives
        drives._statuses = [replace(one, active="gds-p2pdma") for one in drives._statuses]
        yield store


@pytest.fixture
def device_slot() -> DeviceSlot:
    return _OnFakeDevice(torch.zeros(1 << 17, dtype=torch.uint8))


def _filled(slot: DeviceSlot, host: HostSlot, value: int) -> bytes:
    fill(host, RECORDS[0], value)
    slot.tensor(torch.uint8, RECORDS[0].padded_bytes).copy_(
        host.tensor(torch.uint8, RECORDS[0].padded_bytes)
    )
    return payload(host, RECORDS[0])


def test_device_memory_goes_through_kvikio_and_comes_back(
    store: TensorStore, kvikio: FakeKvikio, device_slot: DeviceSlot, slot: HostSlot
) -> None:
    wanted = _filled(device_slot, slot, 1)
    store.begin(1)
    store.write_from("layers.0", device_slot).result()
    store.commit({})
    device_slot.tensor(torch.uint8, device_slot.nbytes).zero_()
    store.read_into("layers.0", device_slot).result()
    size = RECORDS[0].padded_bytes
    slot.tensor(torch.uint8, size).copy_(device_slot.tensor(torch.uint8, size))
    assert payload(slot, RECORDS[0]) == wanted
    assert kvikio.counters == {"n_p2p_writes": 1, "n_p2p_reads": 1}
    store.read_into("layers.0", slot).result()  # and host memory goes by the direct road
    assert payload(slot, RECORDS[0]) == wanted
    assert kvikio.counters["n_p2p_reads"] == 1


def test_a_write_waits_for_what_fills_the_slot(
    store: TensorStore, device_slot: DeviceSlot, slot: HostSlot
) -> None:
    class Fill:
        def wait(self) -> None:
            self.wanted = _filled(device_slot, slot, 5)

    late = Fill()
    device_slot.after(late)
    store.begin(1)
    store.write_from("layers.0", device_slot).result()
    store.read_into("layers.0", slot).result()
    assert payload(slot, RECORDS[0]) == late.wanted


@pytest.mark.parametrize(("fault", "match"), [("error", "EOF"), ("short", "moved fewer bytes")])
def test_a_failing_transfer_names_volume_and_offset(
    store: TensorStore, kvikio: FakeKvikio, device_slot: DeviceSlot, fault: Any, match: str
) -> None:
    store.begin(1)
    store.write_from("layers.0", device_slot).result()
    kvikio.fault = fault
    with pytest.raises(IoFailed, match=match) as caught:
        store.read_into("layers.0", device_slot).result()
    assert caught.value.offset > 0 and "drive0" in caught.value.volume
    assert not device_slot.in_use


def test_damage_is_found_in_device_memory_too(
    store: TensorStore, kvikio: FakeKvikio, device_slot: DeviceSlot
) -> None:
    store.begin(1)
    kvikio.fault = "spoil"
    store.write_from("layers.0", device_slot).result()
    with pytest.raises(Corrupt, match=r"layers\.0"):
        store.read_into("layers.0", device_slot).result()


def test_a_device_slot_is_refused_without_gds(
    volumes: list[VolumeConfig], device_slot: DeviceSlot
) -> None:
    with TensorStore.create(volumes, RECORDS, name="job", reserve_bytes=0) as store:
        store.begin(1)
        with pytest.raises(Misuse, match="cannot reach device memory"):
            store.write_from("layers.0", device_slot)


def test_a_slab_is_registered_once_and_let_go_at_close(
    store: TensorStore, kvikio: FakeKvikio
) -> None:
    with DeviceSlab(1 << 16, torch.device("cpu")) as slab:
        store.register_device(slab.memory)
        assert [one.numel() for one in kvikio.registered] == [1 << 16]
        store.close()
        assert kvikio.registered == [] and kvikio.open_files == 0


def _prove(tmp_path: Path, kvikio: FakeKvikio) -> dict[str, Any]:
    path = tmp_path / "proof"
    path.write_bytes(bytes(8192))
    memory = torch.randint(0, 256, (8192,), dtype=torch.uint8)
    return gds.prove(path, kvikio, bindings(kvikio), memory, torch.zeros_like(memory))


FINDINGS = [
    gds_probe.Finding(name="kernel modules", good=True, found="fine"),
    gds_probe.Finding(name="driver", good=False, found="no nvidia-fs", fix="load it"),
]


@pytest.mark.parametrize(
    ("road", "active", "why"),
    [
        ("p2p", "gds-p2pdma", "counters say so"),
        ("nvfs", "gds-nvfs", "counters say so"),
        ("posix", "", "2 calls by POSIX, not GDS; driver: no nvidia-fs; load it"),
    ],
)
def test_only_the_counters_of_a_whole_transfer_prove_gds(
    tmp_path: Path, road: Road, active: str, why: str
) -> None:
    kvikio = FakeKvikio(road)
    status = gds_probe.judge(FINDINGS, _prove(tmp_path, kvikio))
    assert status.active == active
    assert why in status.why
    assert kvikio.registered == []


def test_bytes_that_come_back_different_prove_nothing(tmp_path: Path, kvikio: FakeKvikio) -> None:
    kvikio.fault = "spoil"
    status = gds_probe.judge(FINDINGS, _prove(tmp_path, kvikio))
    assert not status.active and "came back different" in status.why


def test_counters_that_show_nothing_prove_nothing() -> None:
    found = {"whole": True, "counters": dict.fromkeys(gds.COUNTERS, 0)}
    assert gds_probe.judge(FINDINGS, found).active == ""


def _system(root: Path, **files: str) -> Path:
    for name, text in {"proc/modules": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _finding(root: Path, volume: Path, name: str) -> gds_probe.Finding:
    return next(one for one in gds_probe.examine(volume, root) if one.name == name)


def test_what_the_system_lacks_is_said_with_the_fix(tmp_path: Path) -> None:
    root = _system(tmp_path / "bare")
    assert "-v /run/udev" in _finding(root, tmp_path, "udev").fix
    assert "CONFIG_PCI_P2PDMA" in _finding(root, tmp_path, "driver").fix
    (root / "sys/class/iommu/dmar0").mkdir(parents=True)
    assert "iommu=pt" in _finding(root, tmp_path, "IOMMU").fix


@pytest.mark.parametrize(
    ("files", "good", "fix"),
    [
        ({NVFS + "version": "2.30", NVFS + "modules": "nvme"}, True, ""),
        ({NVFS + "version": "2.30", NVFS + "modules": ""}, False, "DOCA"),
        (
            {
                "proc/kallsyms": "0 r p2pdma_pgmap_ops",
                "proc/driver/nvidia/params": 'RegistryDwords: "RMForceStaticBar1=1;"',
                "sys/module/nvme_core/parameters/multipath": "Y\n",
            },
            False,
            "multipath=N",
        ),
        ({"proc/kallsyms": "0 r p2pdma_pgmap_ops"}, False, "RMForceStaticBar1"),
    ],
)  # fmt: skip
def test_drivers_are_told_apart(
    tmp_path: Path, files: dict[str, str], good: bool, fix: str
) -> None:
    found = _finding(_system(tmp_path / "root", **files), tmp_path, "driver")
    assert found.good == good and fix in found.fix


def test_without_proc_modules_cufile_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gds_probe, "run_child", lambda *_: pytest.fail("cuFile would hang"))
    status = probe_gds(tmp_path, root=tmp_path / "empty")
    assert not status.active and "loadable modules" in status.why


def test_a_child_that_hangs_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(gds_probe, "child_command", lambda *_: command)
    start = time.monotonic()
    found = gds_probe.run_child({}, 0.5)
    assert found == {"error": "cuFile did not answer within 0.5 s"}
    assert time.monotonic() - start < 60


def test_a_child_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit('segmentation, say')"]
    monkeypatch.setattr(gds_probe, "child_command", lambda *_: command)
    assert "status 1: segmentation, say" in gds_probe.run_child({}, 10)["error"]


def test_asked_for_gds_without_a_gpu_the_road_is_another_and_says_why(
    volumes: list[VolumeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [gds_probe.Finding(name="kernel modules", good=True, found="fine")]
    monkeypatch.setattr(gds_probe, "examine", lambda *_: findings)
    status = probe_volume(replace(volumes[0], backend="gds"))
    assert status.requested == "gds" and status.active in ("direct", "buffered")
    assert status.why.startswith("no GDS: ")
    assert list(volumes[0].path.iterdir()) == []


def test_a_missing_kvikio_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapids_logger", None)
    with pytest.raises(StoreError, match=r"pip install .*\[gds\]"):
        gds.load_kvikio()


def test_the_core_never_imports_kvikio() -> None:
    assert "kvikio" not in sys.modules
