"""What compiled layers and kernels need of a machine besides its GPU."""

import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler by its path, None where there is none, and whether Python's headers are there:
    Triton builds with both what calls its kernels."""

    path: str | None
    headers: bool

    @property
    def usable(self) -> bool:
        """Whether nothing is missing."""
        return self.path is not None and self.headers


def find_compiler() -> Compiler:
    """Look at this machine."""
    headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    return Compiler(shutil.which("gcc") or shutil.which("cc"), headers)
