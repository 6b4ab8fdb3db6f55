"""Eight bits for AdamW's moments: candidates side by side, on made gradients.

Each element of a block of 256 has gradients of its own size (log-normal over the block: `--spread`
is the standard deviation of the natural logarithm) and a mean of a third of it. AdamW's update is
followed with fp32 moments and with each candidate's; only one moment is coded at a time. Printed:
`error` of an update and `far`, the error of the whole way gone, both relative; `gain`, how much of
the exact update is in the coded one (1: all, more: too large a step); `largest`, the largest
element of any update over the exact largest one.

    python -m bench.moment_codes --json F
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.inputs import box, finish
from headrace.engine.moment_codes import (
    decode_exp_avg,
    decode_exp_avg_sq,
    encode_exp_avg,
    encode_exp_avg_sq,
)
from headrace.engine.rounding import round_bits

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
Code = Callable[[Tensor], Tensor]  # values of (blocks, 256), coded and back


def main() -> int:
    """Compare all candidates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--spread", type=float, action="append", help="repeatable; 0.5 and 1.5")
    parser.add_argument("--json", type=Path, help="also write the result there")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for spread in arguments.spread or [0.5, 1.5]:
        print(f"spread {spread}: error, far, gain, largest", file=sys.stderr)
        for name, (coded, code) in candidates().items():
            torch.manual_seed(0)
            grads = Gradients(arguments.blocks, spread)
            found = follow(grads, coded, code, arguments.steps)
            results.setdefault(str(spread), {})[f"{coded} {name}"] = found
            figures = "  ".join(f"{value:9.4f}" for value in found.values())
            print(f"  {coded:10}  {name:32}{figures}", file=sys.stderr, flush=True)
    settings = {"steps": arguments.steps, "blocks": arguments.blocks}
    finish({"spreads": results, **settings, "box": box()}, arguments.json)
    return 0


def candidates() -> dict[str, tuple[str, Code]]:
    """What is compared: names, the moment that is coded, and how."""
    m, v = "exp_avg", "exp_avg_sq"
    return {
        "linear, nearest": (m, lambda x: linear(x, 127, nearest)),
        "linear, stochastic": (m, lambda x: linear(x, 127, stochastic)),
        "softsign, nearest": (m, lambda x: softsign(x, nearest)),
        "eighths of powers, nearest": (m, lambda x: chosen(m, x, random=False)),
        "eighths of powers, stochastic": (m, lambda x: chosen(m, x, random=True)),
        "root linear, nearest": (v, lambda x: linear(x.sqrt(), 255, nearest) ** 2),
        "root linear, never zero": (v, lambda x: never_zero(x, nearest)),
        "root linear, never zero, stoch.": (v, lambda x: never_zero(x, stochastic)),
        "eighths of powers, nearest ": (v, lambda x: chosen(v, x, random=False)),
        "eighths of powers, stochastic ": (v, lambda x: chosen(v, x, random=True)),
        "bfloat16, nearest": (v, lambda x: bfloat16(x, random=False)),
        "bfloat16, stochastic": (v, lambda x: bfloat16(x, random=True)),
    }


class Gradients:
    """Endless gradients of (blocks, 256), each element with a size and a mean of its own."""

    def __init__(self, blocks: int, spread: float) -> None:
        self._size = 1e-4 * (spread * torch.randn(blocks, 256)).exp()
        self._mean = torch.randn(blocks, 256) / 3

    def next(self) -> Tensor:
        """The gradients of a step."""
        return (torch.randn_like(self._mean) + self._mean) * self._size


def follow(grads: Gradients, coded: str, code: Code, steps: int) -> dict[str, float]:
    """Go `steps` steps with fp32 moments and with one that is coded after each."""
    first = grads.next()
    zero = torch.zeros_like(first)
    exact, other = [zero, zero], [zero, zero]
    ways = [zero, zero]
    errors, gains, largest = [], [], 0.0
    for step in range(1, steps + 1):
        g = grads.next()
        updates = []
        for moments in (exact, other):
            moments[0] = BETA1 * moments[0] + (1 - BETA1) * g
            moments[1] = BETA2 * moments[1] + (1 - BETA2) * g * g
            root = (moments[1] / (1 - BETA2**step)).sqrt()
            updates.append(moments[0] / (1 - BETA1**step) / (root + EPS))
        ways = [way + update for way, update in zip(ways, updates, strict=True)]
        wanted, got = updates
        errors.append(float((got - wanted).norm() / wanted.norm()))
        gains.append(float((got * wanted).sum() / wanted.square().sum()))
        largest = max(largest, float(got.abs().max() / wanted.abs().max()))
        place = 0 if coded == "exp_avg" else 1
        other[place] = code(other[place])
    tail = slice(-50, None)
    return {
        "error": sum(errors[tail]) / len(errors[tail]),
        "far": float((ways[1] - ways[0]).norm() / ways[0].norm()),
        "gain": sum(gains[tail]) / len(gains[tail]),
        "largest": largest,
    }


def nearest(values: Tensor) -> Tensor:
    """Whole numbers, to nearest."""
    return values.round()


def stochastic(values: Tensor) -> Tensor:
    """Whole numbers, right on average."""
    return (values + torch.rand_like(values)).floor()


def linear(values: Tensor, codes: int, whole: Code) -> Tensor:
    """Codes in proportion to the largest of the block."""
    top = values.abs().amax(1, keepdim=True)
    return whole(values / top * codes).clamp(-codes, codes) / codes * top


def softsign(values: Tensor, whole: Code) -> Tensor:
    """Linear codes of 2 x / (1 + |x|), finer towards zero."""
    top = values.abs().amax(1, keepdim=True)
    share = values / top
    code = whole(127 * 2 * share / (1 + share.abs())) / 127
    return code / (2 - code.abs()) * top


def never_zero(values: Tensor, whole: Code) -> Tensor:
    """Linear codes of the root, of which zero means the smallest."""
    root = values.sqrt()
    top = root.amax(1, keepdim=True)
    return (whole(root / top * 255).clamp(1, 255) / 255 * top) ** 2


def chosen(moment: str, values: Tensor, *, random: bool) -> Tensor:
    """The product's codes; to nearest with half a step in place of random bits."""
    flat = values.reshape(-1)
    half = torch.full(flat.shape, 1 << 19, dtype=torch.int32)
    bits = torch.randint(0, 1 << 20, flat.shape, dtype=torch.int32) if random else half
    codes = torch.empty(flat.shape, dtype=torch.uint8)
    bases = torch.empty(len(flat) // 256, dtype=torch.int16)
    encode, decode = encode_exp_avg, decode_exp_avg
    if moment == "exp_avg_sq":
        encode, decode = encode_exp_avg_sq, decode_exp_avg_sq
    out = torch.empty_like(flat)
    encode(flat, bits, codes, bases)
    decode(codes, bases, out)
    return out.view(values.shape)


def bfloat16(values: Tensor, *, random: bool) -> Tensor:
    """Two bytes instead of one, for comparison."""
    half = torch.full(values.shape, 1 << 15, dtype=torch.int32)
    bits = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32) if random else half
    kept = round_bits(values.contiguous().view(torch.int32), bits, 16)
    return (kept << 16).view(torch.float32)


if __name__ == "__main__":
    sys.exit(main())
