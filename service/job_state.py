"""The training state of a job on the volumes: whether there is any, and giving its space back."""

from collections.abc import Sequence

from headrace.storage import TensorStore, VolumeConfig


def drop_state(volumes: Sequence[str], name: str) -> bool:
    """Give the volumes ("PATH[:BYTES]") back the space of a job's state; whether there was any.

    StoreError while a process uses it.
    """
    configs = [VolumeConfig.parse(text) for text in volumes]
    found = TensorStore.exists(configs, name=name)
    TensorStore.remove(configs, name=name)  # what is left of one that is not whole, too
    return found
