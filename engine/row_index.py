"""Which rows are the same, within a data set and between two, by 64-bit hashes."""

import hashlib
from array import array
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from headrace.storage import whole_file

from .data_report import Place, Tally


class RowIndex:
    """Remembers rows by their content, in the order in which they come; 40 bytes a row."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._contents = array("Q")
        self._hashes = array("Q")  # of contents and labels
        self._places = array("q")  # file, line and item of each row; item 0 says that it is a line

    def add(self, place: Place, content: bytes, labels: bytes = b"") -> None:
        """Remember a row: what it says, and what of it is trained."""
        if not self._files or self._files[-1] != place.file:
            self._files.append(place.file)
        self._places.extend((len(self._files) - 1, place.line, place.item or 0))
        self._contents.append(_hash(content))
        self._hashes.append(_hash(content + labels))

    def save(self, path: Path) -> None:
        """Write it to a file, which is there once it is whole and on disk."""
        with whole_file(path) as file:
            np.savez(
                file,
                files=np.array(self._files),
                contents=np.array(self._contents),
                hashes=np.array(self._hashes),
                places=np.array(self._places),
            )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        index = cls()
        with np.load(path) as saved:
            index._files = saved["files"].tolist()
            index._contents.frombytes(saved["contents"].tobytes())
            index._hashes.frombytes(saved["hashes"].tobytes())
            index._places.frombytes(saved["places"].tobytes())
        return index

    def duplicates(self) -> Tally:
        """Rows that repeat an earlier one, in content and labels."""
        _, firsts, inverse = np.unique(_ids(self._hashes), return_index=True, return_inverse=True)
        first_of_row = firsts[inverse]
        tally = Tally()
        for i in np.flatnonzero(first_of_row != np.arange(len(first_of_row))).tolist():
            tally.add(self._place(i), f"the same as {self._place(first_of_row[i])}")
        return tally

    def found_in(self, training: "RowIndex") -> Tally:
        """Rows whose content is in the training data too, trained there or only read."""
        theirs, firsts = np.unique(_ids(training._contents), return_index=True)
        ours = _ids(self._contents)
        tally = Tally()
        for i in np.flatnonzero(np.isin(ours, theirs)).tolist():
            first = firsts[np.searchsorted(theirs, ours[i])]
            tally.add(self._place(i), f"the same as {training._place(first)} of the training data")
        return tally

    def _place(self, row: int) -> Place:
        file, line, item = self._places[3 * row : 3 * row + 3]
        return Place(file=self._files[file], line=line, item=item or None)


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _ids(hashes: "array[int]") -> npt.NDArray[np.uint64]:
    return np.frombuffer(hashes, dtype=np.uint64)
