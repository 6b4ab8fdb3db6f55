"""What adapters begin with: the same values on every machine for the same seed."""

from hashlib import sha256

import torch
from torch import Tensor

from .lora import DOWN
from .model import RecordLayout


def initial_adapter(layout: RecordLayout, seed: int) -> Tensor:
    """The fp32 values of a layer's adapters, 1-D, of the record's length.

    A is uniform within 1 / sqrt(in), which is He's initialisation with a = sqrt(5) as peft asks
    for it; B is zero, so that training begins with the model as it is. Each A has a generator of
    its own, so that what else is adapted does not change it.
    """
    flat = torch.zeros(layout.num_elements)
    for param in layout.params:
        if param.name.endswith(DOWN):
            own = sha256(f"{seed} {param.name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(own[:6], "little"))
            bound = param.full_shape[1] ** -0.5
            values = flat[param.offset : param.offset + param.num_elements]
            values.uniform_(-bound, bound, generator=generator)
    return flat
