"""The fp32 master survives its split into two halves, whatever its bits."""

import torch

from headrace.engine.state import join_master, split_master


def _round_trip(master: torch.Tensor) -> torch.Tensor:
    hi = torch.empty(master.numel(), dtype=torch.bfloat16)
    lo = torch.empty(master.numel(), dtype=torch.int16)
    joined = torch.empty_like(master)
    split_master(master, hi, lo)
    join_master(hi, lo, joined)
    return joined


def test_every_bit_pattern_of_a_master_survives_the_split() -> None:
    # All 2^32 patterns take minutes; these hold every low half and every high half.
    low = torch.arange(2**16, dtype=torch.int64)
    for high in (0, 0x0001, 0x3F80, 0x7F7F, 0x7F80, 0x7FFF, 0x8000, 0xBF80, 0xFFFF):
        bits = (low + (high << 16)).to(torch.int64)
        for pattern in (bits, (low << 16) + 0x7FFF, (low << 16) + 0x8000):
            signed = torch.where(pattern >= 2**31, pattern - 2**32, pattern).to(torch.int32)
            joined = _round_trip(signed.view(torch.float32))
            assert torch.equal(joined.view(torch.int32), signed)


def test_random_bit_patterns_survive_the_split() -> None:
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (2**20 + 77,), generator=generator, dtype=torch.int64)
    master = bits.to(torch.int32).view(torch.float32)
    assert torch.equal(_round_trip(master).view(torch.int32), master.view(torch.int32))


def test_the_high_half_is_the_nearest_bfloat16() -> None:
    master = torch.randn(10_000)
    hi = torch.empty(10_000, dtype=torch.bfloat16)
    split_master(master, hi, torch.empty(10_000, dtype=torch.int16))
    # Only exact ties may differ from the usual cast, which rounds them to even.
    ties = (master.view(torch.int32) & 0xFFFF) == 0x8000
    assert torch.equal(hi[~ties], master.bfloat16()[~ties])
