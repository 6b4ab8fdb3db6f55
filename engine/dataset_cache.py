"""Prepared data sets kept by what they were made of, so that the same rows are tokenized once.

An entry is the data set's files, linked, not copied: it takes no room while a job has them too.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .content import content_key
from .data_report import DataReport
from .prepare import prepare_dataset
from .row_index import RowIndex
from .token_files import FILES, REPORT

INDEX = "index.npz"
KEPT = 8
NOT_OPTIONS = ("tokenizer", "progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A data set, the index of its rows, and whether it was there already."""

    key: str
    report: DataReport
    index: RowIndex
    from_cache: bool


class DatasetCache:
    """A folder of data sets, of which the last used are kept. For one process at a time."""

    def __init__(self, folder: Path, *, keep: int = KEPT) -> None:
        self._folder = folder
        self._keep = keep

    def prepare(
        self,
        files: Sequence[Path],
        *,
        tokenizer_key: str,
        out_dir: Path,
        training: Prepared | None = None,
        **how: Any,
    ) -> Prepared:
        """As `prepare_dataset`, whose arguments `how` has; or what that made of the same rows.

        `tokenizer_key` is that of `model_key`. What cannot be used is refused each time anew.
        """
        options = {name: value for name, value in how.items() if name not in NOT_OPTIONS}
        training_key = training.key if training else None
        key = content_key(files, tokenizer=tokenizer_key, training=training_key, **options)
        entry = self._folder / key
        if all((entry / name).exists() for name in (*FILES, INDEX)):  # else one half removed
            os.utime(entry)
            _link(entry, out_dir)
            report = DataReport.from_dict(json.loads((out_dir / REPORT).read_bytes()))
            index = RowIndex.load(entry / INDEX)
            return Prepared(key=key, report=report, index=index, from_cache=True)
        index = RowIndex()
        of_training = training.index if training else None
        report = prepare_dataset(files, out_dir=out_dir, index=index, training=of_training, **how)
        self._keep_copy(entry, out_dir, index)
        return Prepared(key=key, report=report, index=index, from_cache=False)

    def _keep_copy(self, entry: Path, out_dir: Path, index: RowIndex) -> None:
        _link(out_dir, entry)
        index.save(entry / INDEX)  # last: it says that the entry is whole
        entries = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in entries[: -self._keep]:
            shutil.rmtree(old)


def _link(source: Path, target: Path) -> None:
    """Make the folder `target` of the data set's files in `source`."""
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for name in FILES:
        try:
            os.link(source / name, target / name)
        except OSError:  # another drive, or one without links
            shutil.copyfile(source / name, target / name)
