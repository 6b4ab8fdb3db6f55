"""What a benchmark's steps and commits write on the volumes, by what it is."""

from collections import Counter
from typing import Any

from headrace.storage import IoFuture, TensorStore


class CountingStore(TensorStore):
    """A store that knows how often each record has been written since it was opened."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.num_writes: Counter[str] = Counter()

    def write_from(self, record: str, slot: Any) -> IoFuture:
        """Write, and count it."""
        future = super().write_from(record, slot)
        self.num_writes[record] += 1
        return future

    def written(self) -> dict[str, int]:
        """Bytes so far: `frozen` records; of trained ones `weights` and `moments`; and `overhead`,
        all that went to the volumes besides: padding, checksums, pages of commits.

        To be asked when no write is under way.
        """
        found = dict.fromkeys(("frozen", "weights", "moments"), 0)
        for name, times in self.num_writes.items():
            record = self.records[name]
            for tensor in record.tensors:
                kind = "weights" if tensor.name.startswith("weight") else "moments"
                found[kind if record.mutable else "frozen"] += times * tensor.payload_bytes
        link = self.stats().links["nvme_write"]
        whole = link.payload_bytes + link.padding_bytes
        return {**found, "overhead": whole - sum(found.values())}
