"""Random bits depend on place, update and seed alone; rounding with them is right on average."""

import torch

from headrace.engine.rounding import RoundingKey, random_words, round_bits

KEY = RoundingKey.of(0, 1, "layers.0")
PLACES = torch.arange(2**17, dtype=torch.int32)


def _bits(words: torch.Tensor) -> torch.Tensor:
    """(32, words) of zeros and ones."""
    return torch.stack([(words >> i) & 1 for i in range(32)]).float()


def test_words_are_the_stated_integer_function() -> None:
    """In Python's whole numbers, for a few places."""

    def mix(x: int) -> int:
        x = ((x ^ x >> 16) * 0x21F0AAAD) % 2**32
        x = ((x ^ x >> 15) * 0xD35A2D97) % 2**32
        return x ^ x >> 15

    first, second = random_words(KEY, PLACES)
    for place in (0, 1, 255, 2**17 - 1):
        one = mix(mix(place ^ KEY.first % 2**32) ^ KEY.second % 2**32)
        two = mix((one + 0x9E3779B9) % 2**32)
        assert (int(first[place]) % 2**32, int(second[place]) % 2**32) == (one, two)


def test_a_place_has_its_words_whatever_is_asked_for_with_it() -> None:
    whole = random_words(KEY, PLACES)
    part = random_words(KEY, PLACES[1000:2000])
    assert torch.equal(part[0], whole[0][1000:2000]) and torch.equal(part[1], whole[1][1000:2000])


def test_every_bit_is_set_half_of_the_time_and_none_follows_another() -> None:
    first, second = random_words(KEY, PLACES)
    later, _ = random_words(RoundingKey.of(0, 2, "layers.0"), PLACES)
    bits = torch.cat([_bits(words) for words in (first, second, later)])
    centred = bits - bits.mean(1, keepdim=True)
    assert (bits.mean(1) - 0.5).abs().max() < 0.0083  # six standard deviations
    correlation = centred @ centred.T / (0.25 * PLACES.numel())
    assert (correlation - torch.eye(96)).abs().max() < 0.0166
    following = (centred[:, 1:] * centred[:, :-1]).mean(1) / 0.25
    assert following.abs().max() < 0.0166


def test_seed_update_and_record_each_change_the_key() -> None:
    keys = {
        RoundingKey.of(seed, update, record)
        for seed in (0, 1)
        for update in (1, 2)
        for record in ("layers.0", "layers.1")
    }
    assert len(keys) == 8


def test_rounding_is_right_on_average_and_never_further_than_a_step() -> None:
    value = torch.full((2**17,), -1.2345678)
    first, _ = random_words(KEY, PLACES)
    kept = round_bits(value.view(torch.int32), first & 0xFFFF, 16)
    rounded = (kept << 16).view(torch.float32).double()
    assert set(rounded.tolist()) == {-1.234375, -1.2421875}
    assert abs(rounded.mean() - value[0].double()) < 5e-5  # five standard deviations


def test_what_is_held_exactly_is_never_moved() -> None:
    held = torch.randn(2**16).bfloat16().float()
    most = torch.full((2**16,), 0xFFFF, dtype=torch.int32)
    kept = round_bits(held.view(torch.int32), most, 16)
    assert torch.equal((kept << 16).view(torch.float32), held)


def test_what_is_not_finite_stays_so() -> None:
    bits = torch.tensor([0x7F800000, 0x7FFFFFFF, -0x800000, -1], dtype=torch.int32)
    kept = round_bits(bits, torch.full((4,), 0xFFFF, dtype=torch.int32), 16) << 16
    assert kept.view(torch.float32).isfinite().tolist() == [False] * 4
    assert kept.view(torch.float32).isinf().tolist() == [True, False, True, False]
