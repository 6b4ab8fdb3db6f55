"""The model families that can be trained. Declared, never guessed. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from .config_values import Config
from .gemma import gemma2_spec, gemma3_spec
from .llama import llama_spec, mistral_spec, olmo2_spec, phi3_spec, qwen2_spec, qwen3_spec
from .model import ModelSpec
from .model_files import UnknownFamily
from .moe import mixtral_spec, qwen3_moe_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family: how its layout follows from its config, and transformers' names for it.

    `spec` takes a config and the largest record, in elements. Decoder layer, norm, rotary
    positions and language model are classes of transformers.models.`module`, named `prefix` +
    DecoderLayer, RMSNorm, RotaryEmbedding and ForCausalLM; the config's class is `config_class`.
    `rope_per_kind`: rotary positions are asked for by the kind of the layer.
    """

    spec: Callable[[Config, int], ModelSpec]
    module: str
    prefix: str
    config_class: str
    rope_per_kind: bool = False

    @property
    def architecture(self) -> str:
        """The class of the whole model, as config.json names it."""
        return f"{self.prefix}ForCausalLM"


def _family(spec: Callable[[Config, int], ModelSpec], module: str, prefix: str) -> Family:
    return Family(spec=spec, module=module, prefix=prefix, config_class=f"{prefix}Config")


FAMILIES: dict[str, Family] = {  # by `model_type` of config.json
    "gemma2": _family(gemma2_spec, "gemma2", "Gemma2"),
    "gemma3_text": Family(
        spec=gemma3_spec,
        module="gemma3",
        prefix="Gemma3",
        config_class="Gemma3TextConfig",
        rope_per_kind=True,
    ),
    "mixtral": _family(mixtral_spec, "mixtral", "Mixtral"),
    "qwen3_moe": _family(qwen3_moe_spec, "qwen3_moe", "Qwen3Moe"),
    "llama": _family(llama_spec, "llama", "Llama"),
    "mistral": _family(mistral_spec, "mistral", "Mistral"),
    "olmo2": _family(olmo2_spec, "olmo2", "Olmo2"),
    "phi3": _family(phi3_spec, "phi3", "Phi3"),
    "qwen2": _family(qwen2_spec, "qwen2", "Qwen2"),
    "qwen3": _family(qwen3_spec, "qwen3", "Qwen3"),
}


def unknown_family(found: str) -> UnknownFamily:
    """The refusal of a model of another family; `found` says what it is."""
    known = ", ".join(sorted(FAMILIES))
    return UnknownFamily(f"{found}; the families known here are: {known}")
