"""A container engine of the trial's own: podman with its images in one directory, and compose."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BASE = "docker.io/library/debian:bookworm-slim"
TOOLS = ("podman", "runc", "debootstrap", "catatonit")
ADVICE = (
    "apt-get install --no-install-recommends podman runc catatonit containernetworking-plugins "
    "debootstrap; pip install '.[image]'"
)
STORAGE = '[storage]\ndriver = "overlay"\nrunroot = "{home}/run"\ngraphroot = "{home}/images"\n'
CONTAINERS = """[containers]
default_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]
[engine]
runtime = "runc"
events_logger = "file"
"""


class Engine:
    """Commands of podman and podman-compose. CalledProcessError when one fails."""

    def __init__(self, home: Path, *, hard_limits: Mapping[str, int]) -> None:
        missing = [tool for tool in TOOLS if not shutil.which(tool, path=_PATH)]
        if missing or os.getuid():
            lacks = "root" if os.getuid() else ", ".join(missing)
            raise SystemExit(f"the trial needs {lacks}: {ADVICE}")
        home.mkdir(parents=True, exist_ok=True)
        limits = {name: hard if hard >= 0 else 1 << 20 for name, hard in hard_limits.items()}
        home.joinpath("storage.conf").write_text(STORAGE.format(home=home))
        home.joinpath("containers.conf").write_text(CONTAINERS.format(**limits))
        self._home = home
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")},
            "PATH": _PATH,
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
            "CONTAINERS_CONF": str(home / "containers.conf"),
        }

    def podman(self, *arguments: str | Path) -> str:
        """What a command of podman prints."""
        done = self._run(["podman", *map(str, arguments)], stdout=subprocess.PIPE)
        return done.stdout.strip()

    def exits(self, *arguments: str) -> int:
        """The exit status of a command of podman; what it prints is shown."""
        return self._run(["podman", *arguments], check=False).returncode

    def inspect(self, name: str) -> dict[str, Any]:
        """What the engine says of a container."""
        return dict(json.loads(self.podman("container", "inspect", name))[0])

    def make_base(self, image: str = BASE) -> None:
        """The base image, from Debian's packages: where this runs no image can be fetched."""
        if self._run(["podman", "image", "exists", image], check=False).returncode == 0:
            return
        root = self._home / "base"
        shutil.rmtree(root, ignore_errors=True)
        self._run(["debootstrap", "--variant=minbase", "bookworm", str(root)])
        archive = self._home / "base.tar"
        self._run(["tar", "-C", str(root), "-cf", str(archive), "."])
        self._run(["podman", "import", str(archive), image])
        archive.unlink()
        shutil.rmtree(root)

    def build(self, repository: Path, *, tag: str, options: Sequence[str]) -> None:
        """Build the Dockerfile's variant without CUDA, every instruction of it, by the engine."""
        ignore = repository / "docker" / "Dockerfile.dockerignore"
        command = ["podman", "build", "--format", "docker", "--network", "host", "--tag", tag]
        command += ["--file", str(repository / "docker" / "Dockerfile")]
        command += ["--ignorefile", str(ignore), "--build-arg", "VARIANT=cpu", *options]
        self._run([*command, str(repository)])

    def compose(
        self, files: Sequence[Path], *arguments: str, profile: str, variables: Mapping[str, str]
    ) -> None:
        """A command of compose over these files."""
        command = [str(Path(sys.executable).with_name("podman-compose")), "--in-pod", "false"]
        # docker keeps everything but the named mounts read-only; podman would add some of its own
        command += ["--podman-run-args=--read-only-tmpfs=false", "-p", "headrace-trial"]
        command += [part for file in files for part in ("-f", str(file))]
        self._run([*command, "--profile", profile, *arguments], variables=variables)

    def _run(
        self,
        command: Sequence[str],
        *,
        check: bool = True,
        stdout: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        environment = {**self._environment, **(variables or {})}
        return subprocess.run(command, check=check, stdout=stdout, env=environment, text=True)


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
