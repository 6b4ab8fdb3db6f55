"""The store's record of a layer's training state, by name and dtype. Pure, no torch."""

from headrace.storage import RecordSpec, TensorSpec

from .model import RecordLayout

WEIGHTS = ("weight_hi", "weight_lo")
STATE = (*WEIGHTS, "exp_avg", "exp_avg_sq")
_DTYPES = {
    "weight_hi": "bfloat16",
    "weight_lo": "int16",
    "exp_avg": "float32",
    "exp_avg_sq": "float32",
}


def state_record(layout: RecordLayout) -> RecordSpec:
    """The store's record for a layout: four flat components of `layout.num_elements`."""
    shape = (layout.num_elements,)
    return RecordSpec(
        name=layout.name,
        tensors=tuple(
            TensorSpec(name=name, dtype=dtype, shape=shape) for name, dtype in _DTYPES.items()
        ),
    )
