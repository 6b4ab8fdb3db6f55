"""What layers and the loss hold at their peak, what torch's allocator loses over it, and how much
of it comes in small tensors; in bytes. Pure, no torch."""

from headrace.storage import DTYPE_BYTES

from .config import TrainConfig
from .model import ModelSpec

MIB = 2**20
# What torch reserves on a GPU beyond what it gives out: blocks that a layer leaves are not always
# those that the next one wants. A part of what a layer works in, up to a point, and of what the
# loss does: twice what was measured where a run's memory is reserved at once (`reserved.py`).
SMALL_BLOCKS_BYTES = 128 * MIB  # of it for what torch gives out of pages of its own
_LOOSE_SHARE, _LOOSE_MOST, _LOOSE_LOSS_SHARE = 0.3, 384 * MIB, 0.1

# Of what a layer's backward holds for its tokens, the most that is there beside the gradients of
# all weights; by whether it is compiled (`tests/engine/test_working.py`).
_SHARE_AT_END = {False: 0.75, True: 0.4}

_KEY_VALUE_SHARE = 0.15  # of what a layer saves, keys and values where few heads have them


def backward_peak_bytes(
    *, token_bytes: int, largest_grad_bytes: int, grad_bytes: int, compiled: bool
) -> int:
    """The peak of a layer's backward. `token_bytes`: the most that it holds for its tokens;
    `largest_grad_bytes` and `grad_bytes`: the gradient of its largest weight, and of all.

    Those gradients come one after the other and stay, while what was saved goes: with many tokens
    the peak is where the first one is made, with few where the last ones are. Of a compiled layer
    less is there at once than is counted for its tokens, by more than the first gradient.
    """
    first = token_bytes + (0 if compiled else largest_grad_bytes)
    return max(first, int(_SHARE_AT_END[compiled] * token_bytes) + grad_bytes)


def logits_bytes(spec: ModelSpec, config: TrainConfig, tokens: int) -> int:
    """What the loss of so many tokens holds at its peak."""
    # A bounded logit waits with its slope, which is found by way of its square.
    each = 4 if DTYPE_BYTES[config.compute_dtype] == 4 else 12
    return tokens * spec.vocab_size * (each + 8 * bool(spec.logit_softcap))


def small_share(spec: ModelSpec, config: TrainConfig, microbatch_tokens: int) -> float:
    """The part, at most, of what layers hold that comes in tensors of up to 1 MiB.

    Those torch gives out of pages of 2 MiB, never of a larger block that is free.
    """
    width = microbatch_tokens * DTYPE_BYTES[config.compute_dtype]
    if width * spec.hidden_size <= MIB:
        return 1.0
    return _KEY_VALUE_SHARE if width * spec.num_kv_heads * spec.head_dim <= MIB else 0.0


def loose_bytes(config: TrainConfig, *, layer_bytes: int, loss_bytes: int) -> int:
    """What the device's allocator holds that nobody uses, given what a layer and the loss hold."""
    if config.device == "cpu":
        return 0
    of_layer = min(int(_LOOSE_SHARE * layer_bytes), _LOOSE_MOST)
    return SMALL_BLOCKS_BYTES + of_layer + int(_LOOSE_LOSS_SHARE * loss_bytes)
