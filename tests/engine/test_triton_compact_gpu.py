"""The Triton kernel of compact formats gives the bits of its plain torch twin, on GPU and CPU."""

import pytest
import torch

from compact_inputs import FORMATS, assert_same_matrices, compact_inputs, moved_to
from headrace.engine import TrainConfig
from headrace.engine.adamw import AdamScalars
from headrace.engine.adamw_compact import adamw_matrices_torch
from headrace.engine.optimizer import adamw_update
from headrace.engine.state import LayerViews, MatrixViews, StateViews

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
NUM = 2**22 + 256 * 3  # no whole number of a program's elements


def _update(state: MatrixViews, grad: torch.Tensor, scalars: AdamScalars, twin: bool) -> None:
    factor = torch.tensor(0.37, device=grad.device)
    if twin:
        adamw_matrices_torch(state, grad, factor, scalars)
        return
    # The vectors behind the matrices have a kernel of their own.
    device = grad.device
    vectors = StateViews(
        torch.zeros(256, dtype=torch.bfloat16, device=device),
        torch.zeros(256, dtype=torch.int16, device=device),
        torch.zeros(256, device=device),
        torch.zeros(256, device=device),
    )
    whole = torch.cat([grad, torch.zeros(256, dtype=grad.dtype, device=device)])
    adamw_update(LayerViews(state.hi, state, vectors), whole, factor, scalars)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state_format", FORMATS)
def test_three_updates_are_bit_equal_to_the_twins(state_format: str, dtype: torch.dtype) -> None:
    config = TrainConfig(model="m", dataset="d", weight_decay=0.1, seed=11)
    start, grad = compact_inputs(state_format, NUM)
    results = []
    for device, twin in (("cuda", False), ("cuda", True), ("cpu", True)):
        state = moved_to(start, device)
        for update in (17, 18, 19):
            scalars = AdamScalars.at(update, learning_rate=3e-4, config=config)
            _update(state, grad.to(device, dtype), scalars, twin)
        results.append(moved_to(state, "cpu"))
    for other in results[1:]:
        assert_same_matrices(results[0], other)
