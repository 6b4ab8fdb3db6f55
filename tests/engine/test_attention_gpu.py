"""Packed documents on a GPU: in half precision one kernel takes all of them together."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.engine.attention import Documents, attend

KINDS: list[dict[str, Any]] = [{}, {"sliding_window": 40}]
LONG = [300, 130, 1, 257, 64]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.fixture(autouse=True, scope="module")
def used_before() -> None:
    """A product forward and backward, so that what torch warns of once it has said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.ones(16, 16, device="cuda", requires_grad=True)
        torch.autograd.backward((one @ one).sum())
        torch.cuda.synchronize()


def on_cuda(lengths: list[int], head: int) -> tuple[list[Tensor], Tensor]:
    """Query, key, value and a gradient of the output, bf16, as a layer lays them out."""
    generator = torch.Generator("cuda").manual_seed(0)

    def make(heads: int) -> Tensor:
        shape = (1, sum(lengths), heads, head)
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    tensors = [make(heads).transpose(1, 2).requires_grad_() for heads in (6, 2, 2)]
    return tensors, make(6)


def gradients(tensors: list[Tensor], grad: Tensor, **how: Any) -> list[Tensor]:
    query, key, value = tensors
    output, _ = attend(torch.nn.Module(), query, key, value, None, **how)
    return [output, *torch.autograd.grad(output, tensors, grad)]


def one_by_one(tensors: list[Tensor], grad: Tensor, lengths: list[int], **how: Any) -> list[Tensor]:
    """The same from PyTorch's fused attention, document by document, in float32."""
    parts: list[list[Tensor]] = []
    pieces = zip(*(torch.split(t, lengths, dim=2) for t in tensors), strict=True)
    for piece, part in zip(pieces, torch.split(grad, lengths, dim=1), strict=True):
        own = [tensor.detach().float().requires_grad_() for tensor in piece]
        parts.append(gradients(own, part.float(), **how))
    return [
        torch.cat(part, dim=d)
        for part, d in zip(zip(*parts, strict=True), (1, 2, 2, 2), strict=True)
    ]


@pytest.mark.parametrize("head", [64, 128, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_for_documents_agrees_with_each_alone(kind: dict[str, Any], head: int) -> None:
    tensors, grad = on_cuda(LONG, head)
    kind = {**kind, "scaling": 1 / math.sqrt(head)}
    packed = Documents.of(torch.tensor([*LONG, 0, 0, 0]), torch.device("cuda"))
    found = gradients(tensors, grad, documents=packed, **kind)
    for one, wanted in zip(found, one_by_one(tensors, grad, LONG, **kind), strict=True):
        gap = (one.float() - wanted).detach().norm() / wanted.detach().norm()
        assert float(gap) < 0.01


def test_the_kernel_for_documents_gives_the_same_bits_again() -> None:
    tensors, grad = on_cuda(LONG, 64)
    packed = Documents.of(torch.tensor(LONG), torch.device("cuda"))
    torch.use_deterministic_algorithms(True)
    try:
        first = gradients(tensors, grad, documents=packed, scaling=0.125)
        for _ in range(5):
            again = gradients(tensors, grad, documents=packed, scaling=0.125)
            assert all(map(torch.equal, first, again))
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_document_changes_no_bit_of_this_one_on_a_gpu() -> None:
    tensors, grad = on_cuda(LONG, 64)
    packed = Documents.of(torch.tensor(LONG), torch.device("cuda"))
    first = gradients(tensors, grad, documents=packed, scaling=0.125)
    for tensor in tensors:
        tensor.data[:, :, 300:430] = 1.5
    second = gradients(tensors, grad, documents=packed, scaling=0.125)
    for one, other, dim in zip(first, second, (1, 2, 2, 2), strict=True):
        for piece in (slice(0, 300), slice(430, None)):
            places = range(*piece.indices(sum(LONG)))
            index = torch.tensor(list(places), device="cuda")
            assert torch.equal(one.index_select(dim, index), other.index_select(dim, index))


def test_float32_on_a_gpu_attends_document_by_document() -> None:
    tensors, grad = on_cuda(LONG, 64)
    wide = [tensor.detach().float().requires_grad_() for tensor in tensors]
    packed = Documents.of(torch.tensor(LONG), torch.device("cuda"))
    found = gradients(wide, grad.float(), documents=packed, scaling=0.125)
    for one, wanted in zip(found, one_by_one(tensors, grad, LONG, scaling=0.125), strict=True):
        assert torch.equal(one, wanted)
