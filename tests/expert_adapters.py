"""Adapters on a mixture's experts in the plainest form: added to the weights before every forward.

transformers stacks the weights of a layer's experts, and peft's adapters of a stack train more than
those of each expert by itself. So the oracle has none of peft: each matrix is its frozen values
plus scaling * B A, stacked anew, with autograd through all of it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

DOWN, UP = ".lora_A.weight", ".lora_B.weight"
MIXTRAL = {".block_sparse_moe.": ".mlp.", ".w1": ".gate_proj", ".w2": ".down_proj",
           ".w3": ".up_proj"}  # fmt: skip


class AdaptedMixture(nn.Module):
    """A frozen mixture and its adapters, which have the checkpoint's names."""

    def __init__(self, model: PreTrainedModel, adapters: Mapping[str, Tensor], scaling: float):
        super().__init__()
        self.config = model.config
        self.device = model.device
        self._scaling = scaling
        self._plain = {name: param.detach() for name, param in model.named_parameters()}
        self._model = [model]  # no submodule: its parameters are none of these
        self._adapters = {name: nn.Parameter(values.clone()) for name, values in adapters.items()}

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The adapters alone."""
        yield from self._adapters.items()

    def forward(self, **inputs: Any) -> Any:
        """What the model gives for `inputs` with the weights as they are now."""
        weights = dict(self._plain)
        for name in self._adapters:
            if name.endswith(DOWN):
                module = name.removesuffix(DOWN)
                up, down = self._adapters[module + UP], self._adapters[name]
                self._add(weights, module, self._scaling * up @ down)
        return functional_call(self._model[0], weights, (), inputs)

    def _add(self, weights: dict[str, Tensor], module: str, change: Tensor) -> None:
        if self.config.model_type == "mixtral":
            for ours, theirs in MIXTRAL.items():
                module = module.replace(ours, theirs)
        block, _, expert = module.partition(".experts.")
        if not expert:
            name = f"{module}.weight"
            weights[name] = weights[name] + change
            return
        index, _, part = expert.partition(".")
        stack = f"{block}.experts.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"
        rows = change.shape[0]
        first = rows if part == "up_proj" else 0
        whole = torch.zeros_like(self._plain[stack])
        whole[int(index), first : first + rows] = change
        weights[stack] = weights[stack] + whole
