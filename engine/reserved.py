"""What is planned of a GPU's memory is torch's own before the first step, or the run ends there."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .errors import MemoryGone, Setting
from .plan import Plan
from .working import MIB, SMALL_BLOCKS_BYTES, small_share

_OF_LAYERS = ("kept_activations", "layer_activations", "boundary_activations")


def reserve(plan: Plan, device: torch.device) -> None:
    """Have torch hold, as one free block, what else is planned of a GPU for the steps.

    To be called when the state is in its homes, before the first step. What steps allocate is cut
    from the block, and what they leave joins again with what lies beside it: blocks asked for one
    by one stay apart, and those that fit nothing else are lost. And no other process can take that
    memory midway. Tensors of up to 1 MiB are never cut from it: what comes in them is left out.
    Peaks that torch counts begin anew, without the block. MemoryGone where the memory is taken
    already, of the block or of what is left out.
    """
    if device.type != "cuda":
        return
    torch.cuda.empty_cache()  # what filling the homes has left is of other sizes
    rest = _planned_bytes(plan) - torch.cuda.memory_reserved(device)
    block = rest - _small_bytes(plan)
    with told_when_short(plan, device):
        if rest - SMALL_BLOCKS_BYTES > torch.cuda.mem_get_info(device)[0]:
            raise torch.OutOfMemoryError
        if block > 0:
            torch.empty((block,), dtype=torch.uint8, device=device)
    torch.cuda.reset_peak_memory_stats(device)


@contextmanager
def told_when_short(plan: Plan, device: torch.device) -> Iterator[None]:
    """MemoryGone with the numbers where a GPU has less left than the plan takes of it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        held = torch.cuda.memory_reserved(device)
        free, total = torch.cuda.mem_get_info(device)
        raise MemoryGone(
            f"the device has {free // MIB} MiB of its {total // MIB} left, and the run needs "
            f"{(_planned_bytes(plan) - held) // MIB} MiB beside the {held // MIB} that it holds: "
            "other processes have taken memory since it was planned, or it was given more than "
            "they leave. End them, or lower ",
            Setting("device_bytes"),
        ) from error


def _planned_bytes(plan: Plan) -> int:
    """Of the device, without what CUDA takes for itself."""
    return plan.total_device_bytes - plan.device_bytes["runtime"]


def _small_bytes(plan: Plan) -> int:
    """Of the device, what steps take in pieces that torch cuts from no large block."""
    sizes, parts = plan.basis.sizes, plan.device_bytes
    gradients = sizes.layer_grad_elements * sizes.compute_bytes  # of weights, as large as these
    of_layers = sum(parts[name] for name in _OF_LAYERS)
    of_layers -= min(gradients, parts["layer_activations"])
    share = small_share(sizes.spec, sizes.config, sizes.microbatch_tokens)
    return SMALL_BLOCKS_BYTES + int(share * of_layers)
