"""Which rows are the same, within a data set and between two, by 64-bit hashes."""

import hashlib
from array import array

import numpy as np

from .data_report import Place, Tally


class RowIndex:
    """Remembers rows by their content, in the order in which they come; 32 bytes a row."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._hashes = array("Q")
        self._places = array("q")  # file, line and item of each row; item 0 says that it is a line

    def add(self, place: Place, content: bytes) -> None:
        """Remember a row; rows of equal content are the same."""
        if not self._files or self._files[-1] != place.file:
            self._files.append(place.file)
        self._places.extend((len(self._files) - 1, place.line, place.item or 0))
        digest = hashlib.blake2b(content, digest_size=8).digest()
        self._hashes.append(int.from_bytes(digest, "little"))

    def duplicates(self) -> Tally:
        """Rows that repeat an earlier one."""
        _, firsts, inverse = np.unique(self._array(), return_index=True, return_inverse=True)
        first_of_row = firsts[inverse]
        tally = Tally()
        for i in np.flatnonzero(first_of_row != np.arange(len(first_of_row))).tolist():
            tally.add(self._place(i), f"the same as {self._place(first_of_row[i])}")
        return tally

    def found_in(self, training: "RowIndex") -> Tally:
        """Rows that are in the training data too."""
        theirs, firsts = np.unique(training._array(), return_index=True)
        found = np.isin(self._array(), theirs)
        tally = Tally()
        for i in np.flatnonzero(found).tolist():
            first = firsts[np.searchsorted(theirs, self._array()[i])]
            tally.add(self._place(i), f"the same as {training._place(first)} of the training data")
        return tally

    def _array(self) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        return np.frombuffer(self._hashes, dtype=np.uint64)

    def _place(self, row: int) -> Place:
        file, line, item = self._places[3 * row : 3 * row + 3]
        return Place(file=self._files[file], line=line, item=item or None)
