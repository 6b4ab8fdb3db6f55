"""Files as the bytes that they stand for: read, hashed, and unpacked where they are compressed."""

import gzip
import hashlib
import io
import math
import time
import zlib
from pathlib import Path
from typing import IO, Any, cast

from headrace.storage import install_line

from .data_report import DataProblem

READ_BYTES = 256 * 1024
PACKED_BYTES = 1024  # of zstd at a time: they can stand for 40 MiB, and no more is held
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)


class Measured(io.RawIOBase):
    """A file that counts and hashes what is read of it.

    Behind `until`, on the monotonic clock, it ends and `is_late`: compressed bytes can stand for
    nothing at all, so that no row would come to look at the clock.
    """

    def __init__(self, path: Path, *, until: float = math.inf) -> None:
        super().__init__()
        self._until = until
        self.is_late = False
        self._file = path.open("rb", buffering=0)
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as the file goes; the number of bytes."""
        self.is_late = self.is_late or time.monotonic() > self._until
        count = 0 if self.is_late else self._file.readinto(buffer)
        self.digest.update(memoryview(buffer)[:count])
        self.num_bytes += count
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def unpack(plain: "io.BufferedReader[Any]", *, name: str) -> "tuple[io.BufferedReader[Any], str]":
    """What the bytes stand for, and how they are compressed: "gzip", "zstd" or not at all.

    Reading raises one of DAMAGED when they are damaged or cut off. DataProblem where zstd cannot be
    read here.
    """
    first = plain.peek(READ_BYTES)
    if first.startswith(GZIP):
        unpacking = cast(io.RawIOBase, gzip.GzipFile(fileobj=cast(IO[bytes], plain)))
        return io.BufferedReader(unpacking, READ_BYTES), "gzip"
    if first.startswith(ZSTD):
        return io.BufferedReader(_Zstd(plain, name=name), READ_BYTES), "zstd"
    return plain, ""


class _Zstd(io.RawIOBase):
    """What zstd frames stand for, one after the other."""

    def __init__(self, packed: "io.BufferedReader[Any]", *, name: str) -> None:
        super().__init__()
        try:
            import zstandard
        except ImportError as error:
            raise DataProblem(
                f"{name} is compressed with zstd, which is not installed here: "
                f"{install_line('zstd')}, or unpack the file with zstd -d"
            ) from error
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._packed = packed
        self._ready = memoryview(b"")
        self._begun = False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as bytes are ready; the number of bytes, 0 at the end."""
        while not self._ready and (chunk := self._next()):
            try:
                self._ready = memoryview(self._frame.decompress(chunk))
            except self._error as error:
                raise EOFError(str(error)) from error
            self._begun = True
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _next(self) -> bytes:
        """Packed bytes of this frame, or of the one behind it."""
        rest = b""
        if self._frame.eof:
            rest = self._frame.unused_data
            self._frame, self._begun = self._decompressor.decompressobj(), False
        chunk = rest or self._packed.read(PACKED_BYTES)
        if not chunk and self._begun:
            raise EOFError("the last frame does not end")
        return chunk

    def close(self) -> None:
        """Close the packed file too."""
        self._packed.close()
        super().close()
