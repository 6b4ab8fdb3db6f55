"""Is GPUDirect Storage real on this volume? Facts of the system, then bytes, then the counters.

Nothing here imports kvikio or touches cuFile: a child process with a time limit does.
"""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .filesystem import filesystem_name
from .gds import PROOF_BYTES, child_command
from .working_file import working_file

TIMEOUT_SECONDS = 20.0
RATE_TIMEOUT_SECONDS = 120.0
_RATE_CALL_BYTES = 128 << 20
_FILESYSTEMS = ("ext4", "xfs")
_REGISTRY = "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact that GDS depends on. `fix` says what to do when it is not good."""

    name: str
    good: bool
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdsStatus:
    """`active` is "gds-nvfs" or "gds-p2pdma" when the counters proved it, else empty."""

    active: str
    why: str
    findings: Sequence[Finding]
    counters: Mapping[str, int]
    versions: Mapping[str, str]
    probed_at: str

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self)


def examine(volume: Path, root: Path = Path("/")) -> list[Finding]:
    """What the system says, the decisive first. `root` stands for the root of the file system."""
    return [
        _proc_modules(root),
        _udev(root),
        _file_system(volume),
        _driver(root),
        _iommu(root),
    ]


def probe_gds(
    volume: Path, *, timeout_seconds: float = TIMEOUT_SECONDS, root: Path = Path("/")
) -> GdsStatus:
    """Prove GDS on `volume`, or say why not. Never raises for what it finds, never hangs."""
    findings = examine(volume, root)
    if not findings[0].good:  # cuFile would spin for ever
        return _status(findings, {}, f"{findings[0].found}; {findings[0].fix}")
    with working_file(volume, "gds", PROOF_BYTES) as path:
        found = run_child({"what": "prove", "path": str(path)}, timeout_seconds)
    return judge(findings, found)


def judge(findings: Sequence[Finding], found: Mapping[str, Any]) -> GdsStatus:
    """The verdict on what the child said: only counters of a whole transfer prove a road."""
    counters = found.get("counters", {})
    if "error" in found:
        return _status(findings, found, str(found["error"]))
    if not found["whole"]:
        return _status(findings, found, "bytes that went through cuFile came back different")
    by_posix = counters["posix_reads"] + counters["posix_writes"]
    if by_posix:
        return _status(findings, found, f"cuFile made {by_posix} calls by POSIX, not GDS")
    for road in ("p2p", "nvfs"):
        if counters[f"{road}_reads"] and counters[f"{road}_writes"]:
            active = {"p2p": "gds-p2pdma", "nvfs": "gds-nvfs"}[road]
            return _status(findings, found, "cuFile's counters say so", active)
    return _status(findings, found, "cuFile's counters show no call by any road")


def run_child(task: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """Run `gds.main` in a process of its own and read its line; it is killed when time is over."""
    with tempfile.TemporaryDirectory(prefix="headrace-gds-") as folder:
        config = Path(folder, "cufile.json")
        config.write_text(json.dumps(cufile_settings(Path(folder))))
        variables = [f"CUFILE_ENV_PATH_JSON={config}", f"CUFILE_LOGFILE_PATH={folder}/cufile.log",
                     "KVIKIO_AUTO_DIRECT_IO_READ=ON"]  # fmt: skip
        child = subprocess.Popen(
            child_command(task, variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = child.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return {"error": f"cuFile did not answer within {timeout_seconds:g} s"}
    lines = out.strip().splitlines()
    if child.returncode != 0 or not lines:
        last = (err.strip().splitlines() or [""])[-1]
        return {"error": f"the probe ended with status {child.returncode}: {last}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def cufile_settings(folder: Path) -> dict[str, Any]:
    """A configuration that allows no quiet fallback and logs into `folder`."""
    return {
        "logging": {"dir": str(folder), "level": "ERROR"},
        "properties": {"allow_compat_mode": False, "use_pci_p2pdma": True},
    }


def kvikio_rate(path: Path, num_bytes: int) -> dict[str, Any]:
    """What kvikio reads into device memory in the mode that it really has here.

    `bytes_per_second` is missing, and `sentence` says why, where it does not run.
    """
    status = probe_gds(path.parent)
    mode = status.active or "posix"
    task = {
        "what": "rate",
        "path": str(path),
        "num_bytes": num_bytes,
        "call_bytes": _RATE_CALL_BYTES,
        "compat_mode": "OFF" if status.active else "ON",
    }
    found = run_child(task, RATE_TIMEOUT_SECONDS)
    if "error" in found:
        return {"mode": mode, "sentence": found["error"], "probe": status.to_dict()}
    speed = found["bytes_per_second"]
    return {
        "mode": mode,
        "bytes_per_second": speed,
        "sentence": f"{speed / 1e9:.2f} GB/s in mode {mode} ({status.why})",
        "probe": status.to_dict(),
    }


def _status(
    findings: Sequence[Finding], found: Mapping[str, Any], why: str, active: str = ""
) -> GdsStatus:
    bad = [one for one in findings if not one.good]
    if not active and bad and bad[0].found not in why:
        why += f"; {bad[0].name}: {bad[0].found}; {bad[0].fix}"
    return GdsStatus(
        active=active,
        why=why,
        findings=findings,
        counters=found.get("counters", {}),
        versions=found.get("versions", {}),
        probed_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _proc_modules(root: Path) -> Finding:
    good = _text(root / "proc/modules") is not None
    return Finding(
        name="kernel modules",
        good=good,
        found="/proc/modules can be read" if good else "/proc/modules cannot be read",
        fix="" if good else "cuFile hangs without it: use a kernel with loadable modules",
    )


def _udev(root: Path) -> Finding:
    good = (root / "run/udev").is_dir()
    return Finding(
        name="udev",
        good=good,
        found="/run/udev is there" if good else "/run/udev is missing",
        fix="" if good else "in a container, mount it: -v /run/udev:/run/udev:ro",
    )


def _file_system(volume: Path) -> Finding:
    name = filesystem_name(volume)
    good = name in _FILESYSTEMS
    fix = "" if good else "put the volume on ext4 or xfs, on the NVMe drive itself"
    return Finding(name="file system", good=good, found=name, fix=fix)


def _driver(root: Path) -> Finding:
    """nvidia-fs with a NVMe driver that registered with it, or P2PDMA in the kernel."""
    version = _text(root / "proc/driver/nvidia-fs/version")
    if version is not None:
        modules = _text(root / "proc/driver/nvidia-fs/modules") or ""
        good = "nvme" in modules
        fix = "" if good else "install the NVMe driver of MOFED or DOCA: it must register"
        return Finding(name="driver", good=good, found=f"nvidia-fs {version.strip()}", fix=fix)
    symbols = _text(root / "proc/kallsyms") or ""
    parameters = _text(root / "proc/driver/nvidia/params") or ""
    if "p2pdma_pgmap_ops" not in symbols:
        return Finding(
            name="driver",
            good=False,
            found="neither nvidia-fs nor P2PDMA in the kernel",
            fix="load nvidia-fs, or use a kernel with CONFIG_PCI_P2PDMA",
        )
    static = "RMForceStaticBar1=1" in parameters
    multipath = (_text(root / "sys/module/nvme_core/parameters/multipath") or "N").strip() == "N"
    good = static and multipath
    fix = "" if static else f'set NVreg_RegistryDwords="{_REGISTRY}"'
    if not multipath:
        fix = f"{fix} boot with nvme_core.multipath=N".strip()
    return Finding(name="driver", good=good, found="P2PDMA in the kernel", fix=fix)


def _iommu(root: Path) -> Finding:
    folder = root / "sys/class/iommu"
    good = not folder.is_dir() or not any(folder.iterdir())
    return Finding(
        name="IOMMU",
        good=good,
        found="off" if good else "on",
        fix="" if good else "turn it off in the firmware, or try iommu=pt",
    )
