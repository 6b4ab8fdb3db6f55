"""The model families that can be trained. Declared, never guessed. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from .llama import llama_spec
from .model import ModelSpec
from .model_files import UnknownFamily

# `model_type` of config.json to the function that lays the model out from its config and the
# largest record, in elements.
FAMILIES: dict[str, Callable[[Mapping[str, Any], int], ModelSpec]] = {"llama": llama_spec}


def unknown_family(found: str) -> UnknownFamily:
    """The refusal of a model of another family; `found` says what it is."""
    known = ", ".join(sorted(FAMILIES))
    return UnknownFamily(f"{found}; the families known here are: {known}")
