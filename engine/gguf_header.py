"""The head of a GGUF file: metadata and where each tensor lies, every length checked.

A file is: magic, version, counts; key, type, value for each piece of metadata; name, dimensions,
type, offset for each tensor; then, aligned, the tensors' data. All of it little-endian.
"""

import hashlib
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

from headrace.storage import install_line, round_up

from .model_files import HEADER_BYTES_CAP, ModelError
from .tensor_table import TensorEntry

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
STRING, ARRAY, BOOL = 8, 9, 7
# Value types by number, as the letters of struct and array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "B", 10: "Q", 11: "q",
           12: "d"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a GGUF file says of itself. `entries` go by GGUF name, with shapes in torch's order.

    `digest` changes with any byte before the data, and with the file's length.
    """

    path: Path
    metadata: dict[str, Any]
    entries: dict[str, TensorEntry]
    digest: str


def load_gguf_package() -> Any:
    """The gguf package, which knows the block formats; ModelError when it is not installed."""
    try:
        import gguf
    except ImportError as e:
        message = f"a GGUF file needs the gguf package, which is not here: {install_line('gguf')}"
        raise ModelError(message) from e
    return gguf


def read_gguf_header(path: Path) -> GgufHeader:
    """Parse everything before the data. ModelError when the file is not whole and sound."""
    size = path.stat().st_size
    with path.open("rb") as file:
        reader = _Reader(file, path, size)
        if reader.take(4) != MAGIC:
            raise ModelError(f"{path} is not a GGUF file: it does not begin with {MAGIC!r}")
        version = reader.number("I")
        if version not in VERSIONS:
            raise ModelError(
                f"{path}: GGUF version {version} (or another byte order); wanted 2 or 3, "
                f"little-endian; convert it with a current llama.cpp"
            )
        num_tensors, num_values = reader.number("Q"), reader.number("Q")
        metadata = _read_metadata(reader, num_values)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise ModelError(f"{path}: general.alignment is {alignment!r}; wanted a number above 0")
        infos = [_read_tensor_info(reader) for _ in range(num_tensors)]
        entries = _place(path, infos, round_up(reader.position, alignment), size)
        file.seek(0)
        head = file.read(reader.position)
    digest = hashlib.blake2b(head + size.to_bytes(8, "little"), digest_size=16).hexdigest()
    return GgufHeader(path=path, metadata=metadata, entries=entries, digest=digest)


class _Reader:
    """Takes typed values from the start of a file, never past its end or the cap on headers."""

    def __init__(self, file: BufferedReader, path: Path, size: int) -> None:
        self._file = file
        self._limit = min(size, HEADER_BYTES_CAP)
        self.path = path
        self.position = 0

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self._limit - self.position:
            raise ModelError(
                f"{self.path}: its metadata wants {num_bytes} bytes at {self.position}, past "
                f"{self._limit}, where the file or what may be metadata ends; the file is damaged "
                f"or was not copied whole: copy it again"
            )
        self.position += num_bytes
        return self._file.read(num_bytes)

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        data = self.take(self.number("Q"))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as e:
            raise ModelError(f"{self.path}: a string in its metadata is not UTF-8: {e}") from e

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self._array(self.number("I"), self.number("Q"))
        if kind == BOOL:
            return self.number("?")
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        raise ModelError(f"{self.path}: its metadata has a value of the unknown type {kind}")

    def _array(self, kind: int, count: int) -> Sequence[Any]:
        """Strings as a list; numbers as an array, so that a hostile file cannot inflate them."""
        if kind == STRING:
            return [self.text() for _ in range(count)]
        if kind not in SCALARS:
            raise ModelError(f"{self.path}: its metadata has an array of the unknown type {kind}")
        numbers = array(SCALARS[kind])
        numbers.frombytes(self.take(count * numbers.itemsize))
        return numbers


def _read_metadata(reader: _Reader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = reader.text()
        if key in metadata:
            raise ModelError(f"{reader.path}: its metadata has the key {key!r} twice")
        metadata[key] = reader.value(reader.number("I"))
    return metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorInfo:
    """A tensor as the file lists it: columns first, offset from the start of the data."""

    name: str
    dimensions: tuple[int, ...]
    kind: int
    offset: int


def _read_tensor_info(reader: _Reader) -> _TensorInfo:
    name = reader.text()
    num_dimensions = reader.number("I")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise ModelError(f"{reader.path}: tensor {name} has {num_dimensions} dimensions")
    return _TensorInfo(
        name=name,
        dimensions=tuple(reader.number("Q") for _ in range(num_dimensions)),
        kind=reader.number("I"),
        offset=reader.number("Q"),
    )


def _place(
    path: Path, infos: list[_TensorInfo], data_start: int, size: int
) -> dict[str, TensorEntry]:
    """Tensors by name, after checking that each lies in the file and none overlaps another."""
    entries: dict[str, TensorEntry] = {}
    for info in infos:
        if info.name in entries:
            raise ModelError(f"{path}: it lists tensor {info.name} twice")
        entries[info.name] = _entry(path, info, data_start)
    end = data_start
    for entry in sorted(entries.values(), key=lambda entry: entry.start):
        if entry.start < end:
            raise ModelError(f"{path}: tensor {entry.name} overlaps the one before; copy it again")
        end = entry.start + entry.num_bytes
        if end > size:
            raise ModelError(
                f"{path} has {size} bytes, but tensor {entry.name} ends at byte {end}; the file "
                f"was not copied whole: copy it again"
            )
    return entries


def _entry(path: Path, info: _TensorInfo, data_start: int) -> TensorEntry:
    gguf = load_gguf_package()
    try:
        kind = gguf.GGMLQuantizationType(info.kind)
    except ValueError as e:
        raise ModelError(
            f"{path}: tensor {info.name} has the unknown type {info.kind}; a newer gguf package "
            f"may know it"
        ) from e
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if info.dimensions[0] % block_elements:
        raise ModelError(
            f"{path}: tensor {info.name} has rows of {info.dimensions[0]} elements; {kind.name} "
            f"wants a multiple of {block_elements}"
        )
    return TensorEntry(
        path=path,
        name=info.name,
        dtype=kind.name,
        shape=tuple(reversed(info.dimensions)),
        start=data_start + info.offset,
        num_bytes=prod(info.dimensions) // block_elements * block_bytes,
    )
