"""Which layers of a model attend to everything before them, and which to a window. Pure."""

from collections.abc import Callable

from .config_values import Config, count
from .model import LayerKind
from .model_files import ModelError

FULL = LayerKind(name="full_attention")
SLIDING = "sliding_attention"
DEFAULT_WINDOW = 4096  # of transformers' configs for Mistral, Qwen and Gemma


def read_kinds(
    config: Config, num_layers: int, slides: Callable[[int], bool], no_window: str = ""
) -> list[LayerKind]:
    """The kind of each layer: by `layer_types`, or by the family's own rule where there is none.

    `slides(i)` says whether layer i (from 0) has a window by that rule; `no_window` why no layer
    may have one. ModelError for kinds that are not known here, and for a window that is not there.
    """
    names = config.get("layer_types")
    if names is None:
        names = [SLIDING if slides(i) else FULL.name for i in range(num_layers)]
    if not isinstance(names, list) or len(names) != num_layers:
        raise ModelError(
            f"config: layer_types is {str(names)[:80]}; wanted a list of {num_layers} kinds"
        )
    for name in names:
        if name not in (FULL.name, SLIDING):
            raise ModelError(f"config: layer_types holds {name!r}; wanted {FULL.name} or {SLIDING}")
    if SLIDING not in names:
        return [FULL] * num_layers
    if no_window:
        raise ModelError(f"config: layer_types names {SLIDING}, and {no_window}")
    # An absent window is the common one of the families that have kinds; null is none.
    window = count({"sliding_window": DEFAULT_WINDOW, **config}, "sliding_window")
    sliding = LayerKind(name=SLIDING, window=window)
    return [sliding if name == SLIDING else FULL for name in names]


def same_window(config: Config, num_layers: int, default: int | None = None) -> list[LayerKind]:
    """The kinds of a family whose layers all have the config's window, or all have none.

    `default` is the window where the key is absent.
    """
    if config.get("layer_types") is not None:
        raise ModelError(
            "config: layer_types is set, which transformers' own model of this family passes "
            "over; remove it"
        )
    if config.get("sliding_window", default) is None:
        return [FULL] * num_layers
    return [LayerKind(name=SLIDING, window=count(config, "sliding_window", default))] * num_layers
