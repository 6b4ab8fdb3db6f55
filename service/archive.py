"""A folder as a tar archive whose length is known before it is read, so that a download shows it.

Regular files alone, not compressed, since weights do not shrink; links are left out.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of `folder`, in which everything lies under `name`/."""

    name: str
    members: tuple[tuple[Path, bytes, int], ...]  # file, header, bytes

    @classmethod
    def of(cls, folder: Path, name: str) -> "Archive":
        """Look at the files as they are now. OSError when one cannot be looked at."""
        members = []
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            found = path.stat()
            info = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            info.size, info.mtime, info.mode = found.st_size, int(found.st_mtime), 0o644
            members.append((path, info.tobuf(tarfile.PAX_FORMAT), found.st_size))
        return cls(name, tuple(members))

    @property
    def num_bytes(self) -> int:
        """Length of the archive."""
        each = (len(header) + _padded(size) for _, header, size in self.members)
        return sum(each) + 2 * tarfile.BLOCKSIZE

    def chunks(self) -> Iterator[bytes]:
        """The archive's bytes. OSError when a file is not any more what it was."""
        for path, header, size in self.members:
            yield header
            with path.open("rb") as file:
                left = size
                while left:
                    chunk = file.read(min(CHUNK_BYTES, left))
                    if not chunk:
                        raise OSError(f"{path} became shorter while it was sent")
                    left -= len(chunk)
                    yield chunk
            yield bytes(_padded(size) - size)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
