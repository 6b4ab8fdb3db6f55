"""What GGUF files call a model's tensors, and how they keep them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .gguf_header import load_gguf_package
from .model import ROUTER, ModelSpec
from .model_files import ModelError

ARCHITECTURES = {  # by `model_type` of config.json
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "olmo2": "olmo2",
}
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufPlace:
    """Where a file has a parameter: in the tensor `name`; an expert's is one of a stack.

    `in_pairs`: the two halves of each head's rows are shuffled into pairs; `shifted`: one is added
    to each value; `exact`: it is never coded.
    """

    name: str
    expert: int | None
    in_pairs: bool
    shifted: bool
    exact: bool


def places(spec: ModelSpec) -> dict[str, GgufPlace]:
    """The place of every parameter, by its checkpoint name, in the order of the spec.

    ModelError for a parameter that files of this architecture have no tensor for.
    """
    arch = ARCHITECTURES[spec.family]
    known = _name_map(arch, spec.num_layers)
    shapes = {param.name: param.full_shape for record in spec.records for param in record.params}
    return {name: _place(spec.family, known, name, len(shape)) for name, shape in shapes.items()}


def _name_map(arch: str, num_layers: int) -> Any:
    gguf = load_gguf_package()
    (found,) = (key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    return gguf.get_tensor_name_map(found, num_layers)


def _place(family: str, known: Any, name: str, num_dimensions: int) -> GgufPlace:
    stem, _, last = name.rpartition(".")
    parts = stem.split(".")
    expert = None
    if "experts" in parts:
        expert = int(parts.pop(parts.index("experts") + 1))
    found = known.get_name(".".join(parts))
    if found is None or (last == "bias" and not _has_bias(family, stem)):
        raise ModelError(
            f"GGUF files of the architecture {ARCHITECTURES[family]} have no tensor for {name}; "
            f"export the model as hf"
        )
    return GgufPlace(
        name=f"{found}.{last}",
        expert=expert,
        in_pairs=ARCHITECTURES[family] == "llama" and stem.endswith(("q_proj", "k_proj")),
        shifted=family.startswith("gemma") and stem.endswith("norm"),
        exact=num_dimensions == 1 or name.endswith(ROUTER),
    )


def _has_bias(family: str, stem: str) -> bool:
    """Whether readers of the architecture add that projection's bias."""
    return family == "llama" or (
        family == "qwen2" and stem.endswith(("q_proj", "k_proj", "v_proj"))
    )


def stacks(found: Iterable[GgufPlace]) -> dict[str, int | None]:
    """The tensors that the parameters lie in, and of how many experts each is a stack."""
    counts: dict[str, int | None] = {}
    for place in found:
        counts[place.name] = None if place.expert is None else (counts.get(place.name) or 0) + 1
    return counts
