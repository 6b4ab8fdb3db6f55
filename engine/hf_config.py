"""The config of a model as transformers itself takes it. Needs no torch."""

from typing import Any

from .families import FAMILIES
from .model import ModelSpec
from .model_files import ModelError


def build_config(spec: ModelSpec, **values: Any) -> Any:
    """The config of the spec, of its family's class, with `values` in place of its own.

    ModelError for what transformers refuses: it judges every value of a config.json, also those
    that nothing here reads, and it would refuse the export as well.
    """
    import transformers

    config_class = getattr(transformers, FAMILIES[spec.family].config_class)
    try:
        return config_class(**{**spec.config, **values})
    except Exception as e:  # its validators raise what they like
        said = " ".join(str(e).split())
        raise ModelError(f"config.json: transformers refuses it: {said}") from e
