"""Frozen weights in few bits: codes by block, each block with a scale of its own.

nf4: Dettmers et al., "QLoRA" (2023): 16 values, the quantiles of a normal distribution, two codes a
byte, the first in the upper half. int8: 255 evenly spaced values. A block of 64 weights is divided
by its largest magnitude, which is kept in float32: 4.5 and 8.5 bits a weight.
"""

from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

import torch
from torch import Tensor

from .model import CODE_BLOCK, CodedFormat
from .state import CHUNK_ELEMENTS

_TAIL = 0.9677083  # where the outermost quantiles lie, by QLoRA's appendix E
_INT8_STEPS = 127


@lru_cache(maxsize=1)
def nf4_values() -> tuple[float, ...]:
    """The 16 values of nf4, ascending from -1 to 1, with 0 among them."""
    below = [NormalDist().inv_cdf(1 - p) for p in _evenly(_TAIL, 0.5, 8)]
    above = [NormalDist().inv_cdf(p) for p in _evenly(_TAIL, 0.5, 9)]
    most = max(above)
    return tuple(sorted(value / most for value in (*below, 0.0, *above)))


def _evenly(start: float, stop: float, count: int) -> list[float]:
    """`count` numbers from start to stop, but for the last."""
    return [start + (stop - start) * i / (count - 1) for i in range(count - 1)]


def encode(weights: Tensor, codes: Tensor, scales: Tensor, base: CodedFormat) -> None:
    """Write the codes (uint8 or int8) and scales (fp32) of fp32 `weights`, 1-D, whole blocks."""
    for piece, coded, scale in _chunks(weights, codes, scales, base):
        blocks = piece.view(-1, CODE_BLOCK)
        torch.amax(blocks.abs(), dim=1, out=scale)
        scaled = blocks / scale.where(scale > 0, 1.0)[:, None]
        if base == "int8":
            coded.copy_((scaled * _INT8_STEPS).round_().view(-1))
            continue
        middles = [(a + b) / 2 for a, b in pairwise(nf4_values())]
        nearest = torch.bucketize(scaled.view(-1), scaled.new_tensor(middles)).to(torch.uint8)
        coded.copy_((nearest[0::2] << 4) | nearest[1::2])


def decode(codes: Tensor, scales: Tensor, out: Tensor, base: CodedFormat) -> None:
    """Write the weights into `out`, fp32 or bf16, 1-D; each is rounded once to its dtype.

    On CUDA one Triton kernel does the same operations in one pass.
    """
    if out.device.type != "cuda":
        decode_torch(codes, scales, out, base)
        return
    from .triton_codes import decode_int8_triton, decode_nf4_triton

    if base == "int8":
        decode_int8_triton(codes, scales, float(_INT8_STEPS), out)
    else:
        decode_nf4_triton(codes, scales, _values_on(out.device), out)


def decode_torch(codes: Tensor, scales: Tensor, out: Tensor, base: CodedFormat) -> None:
    """The weights in plain torch, chunk by chunk: the CPU's way, and the kernels' twin."""
    for piece, coded, scale in _chunks(out, codes, scales, base):
        if base == "int8":
            # Torch would multiply by the reciprocal of a number on the GPU; a tensor it divides by.
            values = coded.float().div_(torch.full((), float(_INT8_STEPS), device=coded.device))
        else:
            table = _values_on(scale.device)
            halves = torch.stack((coded >> 4, coded & 15), dim=1).view(-1)
            values = table.index_select(0, halves.int())
        values = values.view(-1, CODE_BLOCK).mul_(scale[:, None])
        piece.copy_(values.view(-1))


@lru_cache(maxsize=8)
def _values_on(device: torch.device) -> Tensor:
    """The values of nf4 on a device: copying them there for each decoding would wait for it."""
    return torch.tensor(nf4_values(), device=device)


def _chunks(
    flat: Tensor, codes: Tensor, scales: Tensor, base: CodedFormat
) -> "zip[tuple[Tensor, Tensor, Tensor]]":
    """Pieces of the weights with their codes and scales: scratch stays small."""
    chunk = CHUNK_ELEMENTS if flat.device.type == "cpu" else 64 * CHUNK_ELEMENTS
    per_code = 2 if base == "nf4" else 1
    return zip(
        torch.split(flat, chunk),
        torch.split(codes, chunk // per_code),
        torch.split(scales, chunk // CODE_BLOCK),
        strict=True,
    )
