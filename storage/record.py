"""Records: the named bytes that the store keeps. Pure; knows no layer, step or job."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

PAGE_BYTES = 4096

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is not below `value` (both in the same unit)."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Named bytes with a dtype (a key of DTYPE_BYTES) and a shape (elements per dimension)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a tensor needs a name")
        if self.dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise ValueError(f"tensor {self.name!r}: dtype {self.dtype!r} is not one of {known}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"tensor {self.name!r}: shape {self.shape} has a negative size")

    @property
    def payload_bytes(self) -> int:
        """Bytes of the elements alone."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        """Bytes on disk and in a slot: the payload, padded to whole pages."""
        return round_up(self.payload_bytes, PAGE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpec:
    """What one visit reads: tensors in reading order, each at a page-aligned offset.

    A slot that holds the record has the same layout as the record has on disk. `mutable` records
    have two extents (A and B), read-only ones a single extent.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    mutable: bool = True

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if not self.name or not names:
            raise ValueError(f"record {self.name!r} needs a name and at least one tensor")
        if len(set(names)) != len(names):
            raise ValueError(f"record {self.name!r} names a tensor twice: {names}")

    @property
    def payload_bytes(self) -> int:
        """Bytes of all elements, without padding."""
        return sum(tensor.payload_bytes for tensor in self.tensors)

    @property
    def padded_bytes(self) -> int:
        """Bytes of a slot that holds the record: every tensor padded to whole pages."""
        return sum(tensor.padded_bytes for tensor in self.tensors)

    def tensor(self, name: str) -> TensorSpec:
        """The tensor of that name; KeyError when there is none."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(f"record {self.name!r} has no tensor {name!r}")

    def offset(self, name: str) -> int:
        """Byte offset of a tensor from the start of the record (and of a slot that holds it)."""
        self.tensor(name)
        offset = 0
        for tensor in self.tensors:
            if tensor.name == name:
                break
            offset += tensor.padded_bytes
        return offset

    def runs(self, names: Sequence[str] | None = None) -> list[tuple[int, int]]:
        """Byte ranges (start, stop) that hold the named tensors (all when None), neighbours joined.

        Raises KeyError for a name that the record does not have.
        """
        wanted: Iterable[TensorSpec] = self.tensors
        if names is not None:
            chosen = {self.tensor(name).name for name in names}
            wanted = (tensor for tensor in self.tensors if tensor.name in chosen)
        runs: list[tuple[int, int]] = []
        for tensor in wanted:
            start = self.offset(tensor.name)
            stop = start + tensor.padded_bytes
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], stop)
            else:
                runs.append((start, stop))
        return runs
