"""A decoder layer whose projections have adapters, computed as peft computes them."""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.functional import linear

from .model import Lora


class AdaptedLinear(nn.Linear):
    """A projection and its adapter: W x + b + scaling * B (A x), W and b frozen."""

    def __init__(self, plain: nn.Linear, lora: Lora) -> None:
        super().__init__(plain.in_features, plain.out_features, plain.bias is not None)
        self.lora_A = nn.Linear(plain.in_features, lora.rank, bias=False)
        self.lora_B = nn.Linear(lora.rank, plain.out_features, bias=False)
        self.scaling = lora.scaling

    def forward(self, input: Tensor) -> Tensor:
        """Output for `input`, (..., in)."""
        adapted: Tensor = self.lora_B(self.lora_A(input))
        return linear(input, self.weight, self.bias) + adapted * self.scaling


def add_adapters(layer: nn.Module, names: Iterable[str], lora: Lora) -> None:
    """Put adapters on the projections of these names; call it where new modules are on meta."""
    for name in names:
        plain = layer.get_submodule(name)
        assert isinstance(plain, nn.Linear)
        parent, _, last = name.rpartition(".")
        setattr(layer.get_submodule(parent), last, AdaptedLinear(plain, lora))
