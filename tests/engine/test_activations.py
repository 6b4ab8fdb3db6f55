"""Boundary activations come back as they were kept, from the device or from a host slot."""

import torch

from headrace.engine.activations import DeviceActivations, HostActivations
from headrace.storage import HostArena, Transfer

SHAPES = [(2, 5, 8), (1, 7, 8)]


def test_activations_in_a_host_slot_come_back_as_they_were() -> None:
    kept = {(layer, m): torch.randn(SHAPES[m]).bfloat16() for layer in range(3) for m in range(2)}
    device = torch.device("cpu")
    with HostArena(1 << 21) as arena, Transfer(device) as transfer:
        parked = HostActivations(
            arena.carve(1 << 16),
            transfer=transfer,
            device=device,
            dtype=torch.bfloat16,
            layers=range(3),
            shapes=SHAPES,
        )
        for (layer, m), hidden in kept.items():
            parked.keep(layer, m, hidden.clone())
        for layer in reversed(range(3)):
            for m in range(2):
                assert torch.equal(parked.fetch(layer, m), kept[layer, m])
        moved = sum(hidden.nbytes for hidden in kept.values())
        assert {link: s.payload_bytes for link, s in transfer.stats().items()} == {
            "h2d": moved,
            "d2h": moved,
        }
        del parked


def test_activations_on_the_device_are_let_go_when_fetched() -> None:
    kept = DeviceActivations()
    hidden = torch.randn(1, 2, 3)
    kept.keep(0, 0, hidden)
    assert kept.fetch(0, 0) is hidden
    assert not kept._kept
