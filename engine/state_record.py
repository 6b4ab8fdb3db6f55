"""The store's record of a layer's training state, by name and dtype. Pure, no torch."""

from headrace.storage import RecordSpec, TensorSpec

from .config import ComputeDtype
from .model import CODE_BLOCK, RecordLayout

WEIGHTS = ("weight_hi", "weight_lo")
STATE = (*WEIGHTS, "exp_avg", "exp_avg_sq")
CODES, SCALES = "codes", "scales"
_DTYPES = {
    "weight_hi": "bfloat16",
    "weight_lo": "int16",
    "exp_avg": "float32",
    "exp_avg_sq": "float32",
}

Component = tuple[str, str, int]  # name, dtype, number of elements


def components(layout: RecordLayout) -> tuple[Component, ...]:
    """The flat components of a record, in its order.

    A trained record has four of `layout.num_elements`. A frozen one has weights alone: as
    bfloat16, as the two halves of float32, or coded: then its matrices are codes with a scale for
    each block, and the rest is bfloat16.
    """
    count = layout.num_elements
    if layout.base is None:
        return tuple((name, dtype, count) for name, dtype in _DTYPES.items())
    halves = WEIGHTS if layout.base == "float32" else WEIGHTS[:1]
    matrices = coded_elements(layout)
    found: list[Component] = [(name, _DTYPES[name], count - matrices) for name in halves]
    if matrices and layout.base == "nf4":
        found.append((CODES, "uint8", matrices // 2))
    elif matrices:
        found.append((CODES, "int8", matrices))
    if matrices:
        found.append((SCALES, "float32", matrices // CODE_BLOCK))
    return tuple(found)


def coded_elements(layout: RecordLayout) -> int:
    """Elements of a record that are coded: a frozen layer's matrices, which come first."""
    if layout.base not in ("nf4", "int8") or layout.kind != "layer":
        return 0
    vectors = (param.offset for param in layout.params if len(param.full_shape) == 1)
    return next(vectors, layout.num_elements)


def state_record(layout: RecordLayout) -> RecordSpec:
    """The store's record for a layout; a frozen one is written once."""
    return RecordSpec(
        name=layout.name,
        tensors=tuple(
            TensorSpec(name=name, dtype=dtype, shape=(count,))
            for name, dtype, count in components(layout)
        ),
        mutable=layout.base is None,
    )


def weight_names(record: RecordSpec, compute_dtype: ComputeDtype) -> tuple[str, ...]:
    """The components that forward reads: of a trained record in bf16 compute the upper half."""
    names = tuple(tensor.name for tensor in record.tensors)
    if not record.mutable:
        return names
    return WEIGHTS[:1] if compute_dtype == "bfloat16" else WEIGHTS
