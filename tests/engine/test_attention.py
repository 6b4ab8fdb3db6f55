"""Attention sees a document and no more: against arithmetic written out, and against itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.engine.attention import Documents, attend

LENGTHS = [7, 12, 1, 9]
KINDS: list[dict[str, Any]] = [
    {"scaling": 0.3},
    {"scaling": 0.3, "sliding_window": 4},
    {"scaling": 0.3, "softcap": 2.0},
    {"scaling": 0.3, "softcap": 2.0, "sliding_window": 3},
]


def inputs(num_tokens: int, *, rows: int = 1, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Query with four heads, key and value with two."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, heads, num_tokens, 8) for heads in (4, 2, 2)]
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


def documents(lengths: list[int]) -> Documents:
    return Documents.of(torch.tensor([*lengths, 0, 0]), torch.device("cpu"))


def call(*tensors: Tensor, **kind: Any) -> Tensor:
    query, key, value = tensors
    output, _ = attend(torch.nn.Module(), query, key, value, None, **kind)
    return output


def written_out(query: Tensor, key: Tensor, value: Tensor, **kind: Any) -> Tensor:
    """One row in float64, (tokens, heads, head): each token's own sum over those that it sees."""
    query, key, value = (tensor[0].double() for tensor in (query, key, value))
    output = torch.zeros(query.shape[1], query.shape[0], query.shape[2], dtype=torch.float64)
    for head in range(query.shape[0]):
        for t in range(query.shape[1]):
            first = max(0, t + 1 - kind.get("sliding_window", t + 1))
            scores = key[head // 2, first : t + 1] @ query[head, t] * kind["scaling"]
            if cap := kind.get("softcap"):
                scores = cap * (scores / cap).tanh()
            weights = (scores - scores.max()).exp()
            output[t, head] = weights / weights.sum() @ value[head // 2, first : t + 1]
    return output


@pytest.mark.parametrize("kind", KINDS)
def test_each_document_attends_to_itself_as_written_out(kind: dict[str, Any]) -> None:
    tensors = inputs(sum(LENGTHS))
    found = call(*tensors, documents=documents(LENGTHS), **kind)[0]
    pieces = zip(*(torch.split(tensor, LENGTHS, dim=2) for tensor in tensors), strict=True)
    wanted = torch.cat([written_out(*piece, **kind) for piece in pieces])
    assert torch.allclose(found.double(), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_has_the_bits_that_it_has_alone(kind: dict[str, Any]) -> None:
    tensors = inputs(sum(LENGTHS))
    packed = call(*tensors, documents=documents(LENGTHS), **kind)
    pieces = zip(*(torch.split(tensor, LENGTHS, dim=2) for tensor in tensors), strict=True)
    assert torch.equal(packed, torch.cat([call(*piece, **kind) for piece in pieces], dim=1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_that_is_compiled_says_the_same(
    kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(sum(LENGTHS))]
    weights = torch.randn(1, sum(LENGTHS), 4, 8, generator=torch.Generator().manual_seed(9))

    def both() -> list[Tensor]:
        output = call(*tensors, documents=documents(LENGTHS), **kind)
        return [output, *torch.autograd.grad(output, tensors, weights)]

    looped = both()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for found, wanted in zip(both(), looped, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_rows_side_by_side_attend_to_themselves(kind: dict[str, Any]) -> None:
    tensors = inputs(11, rows=3)
    found = call(*tensors, **kind)
    for i in range(3):
        wanted = written_out(*(tensor[i : i + 1] for tensor in tensors), **kind)
        assert torch.allclose(found[i].double(), wanted, atol=1e-6)


def test_places_start_again_with_each_document() -> None:
    found = documents([3, 1, 2])
    assert found.position_ids().tolist() == [[0, 1, 2, 0, 0, 1]]
    assert found.bounds.tolist() == [0, 3, 4, 6, 6, 6]
    assert found.bounds.dtype == torch.int32
