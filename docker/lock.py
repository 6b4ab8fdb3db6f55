"""Writes the lock files of the image: every package with version and hash, for Debian's Python.

`python docker/lock.py` resolves pyproject.toml for that Python with pip and writes lock-cuda.txt,
lock-cpu.txt and lock-build.txt beside this file. Where torch comes from decides its build: pip's
own index has the one for CUDA, PyTorch's index of CPU builds (--torch-index) the other.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = "3.11"  # of Debian 12
PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in range(36, 4, -1)), "manylinux2014_x86_64")
# kvikio asks for cupy, which Headrace does without: what it does need is named here.
KVIKIO = ("libkvikio-cu13", "cuda-pathfinder", "rapids-logger==0.3.*")


def resolve(wanted: list[str], options: list[str]) -> list[dict[str, Any]]:
    """What pip would install for these requirements, as the entries of its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run",
                   "--ignore-installed", "--only-binary", ":all:", "--target", folder,
                   "--python-version", PYTHON, "--report", str(report)]  # fmt: skip
        for platform in PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, *options, *wanted], check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return found


def lines_of(entries: list[dict[str, Any]]) -> list[str]:
    """The lines of a lock file, sorted by name."""
    lines = []
    for entry in entries:
        meta, archive = entry["metadata"], entry["download_info"]["archive_info"]
        digest = archive["hashes"]["sha256"]
        lines.append(f"{meta['name'].lower()}=={meta['version']} --hash=sha256:{digest}")
    return sorted(lines)


def write(name: str, entries: list[dict[str, Any]]) -> None:
    """Write one lock file."""
    head = (
        f"# Made by docker/lock.py for Python {PYTHON} on x86-64; every package that is installed."
    )
    (HERE / name).write_text("\n".join([head, *lines_of(entries)]) + "\n")


def main() -> None:
    """Resolve and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-index", help="an index of CPU builds of torch, or a directory")
    options = parser.parse_args()
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    constraints = ["-c", str(HERE.parent / "constraints.txt")]
    base = [*project["dependencies"], *extras["gguf"]]
    write("lock-build.txt", resolve(["hatchling"], []))
    cuda = resolve(base, constraints)
    known = {entry["metadata"]["name"] for entry in cuda}
    gds = resolve([*extras["gds"], *KVIKIO], ["--no-deps"])
    write("lock-cuda.txt", [*cuda, *(e for e in gds if e["metadata"]["name"] not in known)])
    index = []
    if options.torch_index:
        kind = "--find-links" if Path(options.torch_index).is_dir() else "--extra-index-url"
        index = [kind, options.torch_index]
    write("lock-cpu.txt", resolve(base, [*constraints, *index]))


if __name__ == "__main__":
    main()
