"""The store's record of a layer's training state, by name and dtype. Pure, no torch.

`exact` splits an fp32 master in two halves and keeps fp32 moments, 12 bytes an element. A compact
format holds for the matrices of layers; vectors (norms, biases), the final norm and the tables
stay exact. Bytes an element of a matrix:

| format | weight | moments | sum |
|---|---|---|---|
| q8 | bfloat16 upper half, 8-bit rest of a 24-bit master | 8-bit codes | 5.02 |
| sr_bf16 | bfloat16, stochastically rounded | bfloat16, stochastically rounded | 6 |
| sr_q8 | bfloat16, stochastically rounded | 8-bit codes | 4.02 |
"""

from headrace.storage import DTYPE_BYTES, PAGE_BYTES, RecordSpec, TensorSpec, round_up

from .config import ComputeDtype, StateFormat
from .model import CODE_BLOCK, ModelSpec, RecordLayout

BLOCK_ELEMENTS = 256  # 8-bit codes that share a base; parameters start on multiples

Component = tuple[str, str, int]  # name, dtype, number of elements

CODES, SCALES = "codes", "scales"  # of coded frozen weights
_BASES = ("exp_avg_base", "exp_avg_sq_base")


def components(layout: RecordLayout, state_format: StateFormat) -> tuple[Component, ...]:
    """The flat components of a record, in its order: weights first, what every forward reads.

    A frozen record has weights alone, whatever the format: as bfloat16, as both halves of float32,
    or coded: then its matrices are codes with a scale for each block, and the rest is bfloat16.
    """
    count = layout.num_elements
    if layout.base is not None:
        return _frozen_components(layout)
    if state_format == "exact" or layout.kind != "layer":
        return (("weight_hi", "bfloat16", count), *_exact_rest(count))
    matrices = layout.num_matrix_elements
    lower, *vectors = _exact_rest(count - matrices)
    weights: list[Component] = [("weight_hi", "bfloat16", count), lower]
    if state_format == "q8":
        weights.append(("weight_rest", "int8", matrices))
    if state_format == "sr_bf16":
        return (*weights, *_moments("bfloat16", matrices, "hi"), *vectors)
    bases: list[Component] = [(name, "int16", matrices // BLOCK_ELEMENTS) for name in _BASES]
    return (*weights, *_moments("uint8", matrices, "code"), *bases, *vectors)


def _frozen_components(layout: RecordLayout) -> tuple[Component, ...]:
    coded = coded_elements(layout)
    found: list[Component] = [("weight_hi", "bfloat16", layout.num_elements - coded)]
    if layout.base == "float32":
        found.append(("weight_lo", "int16", layout.num_elements))
    if coded:
        codes = (CODES, "uint8", coded // 2) if layout.base == "nf4" else (CODES, "int8", coded)
        found += [codes, (SCALES, "float32", coded // CODE_BLOCK)]
    return tuple(found)


def coded_elements(layout: RecordLayout) -> int:
    """Elements of a record that are coded: a frozen layer's matrices, which come first."""
    coded = layout.base in ("nf4", "int8") and layout.kind == "layer"
    return layout.num_matrix_elements if coded else 0


def converted_elements(layout: RecordLayout, compute_dtype: ComputeDtype) -> int:
    """Elements of a record that are converted to be computed with: in fp32 all, else the coded."""
    return layout.num_elements if compute_dtype == "float32" else coded_elements(layout)


def _exact_rest(count: int) -> tuple[Component, ...]:
    """What an exact element has besides its upper half."""
    moments: list[Component] = [(name, "float32", count) for name in ("exp_avg", "exp_avg_sq")]
    return (("weight_lo", "int16", count), *moments)


def _moments(dtype: str, count: int, suffix: str) -> tuple[Component, ...]:
    return tuple((f"{name}_{suffix}", dtype, count) for name in ("exp_avg", "exp_avg_sq"))


def state_record(layout: RecordLayout, state_format: StateFormat) -> RecordSpec:
    """The store's record for a layout in a format; a frozen one is written once."""
    return RecordSpec(
        name=layout.name,
        tensors=tuple(
            TensorSpec(name=name, dtype=dtype, shape=(count,))
            for name, dtype, count in components(layout, state_format)
        ),
        mutable=layout.base is None,
    )


def state_payload_bytes(layout: RecordLayout, state_format: StateFormat) -> int:
    """Bytes of a record's components, without padding."""
    return sum(DTYPE_BYTES[dtype] * count for _, dtype, count in components(layout, state_format))


def model_state_bytes(spec: ModelSpec, state_format: StateFormat) -> int:
    """Payload bytes of the state of all that is trained, gaps between parameters included."""
    return sum(state_payload_bytes(record, state_format) for record in spec.trained)


def frozen_bytes(spec: ModelSpec) -> int:
    """Payload bytes of all that is frozen, likewise."""
    frozen = (record for record in spec.records if record.base is not None)
    return sum(state_payload_bytes(record, "exact") for record in frozen)


def model_weight_bytes(spec: ModelSpec, state_format: StateFormat) -> int:
    """Payload bytes of the weights of all that is trained as they are held."""
    return sum(
        DTYPE_BYTES[dtype] * count
        for record in spec.trained
        for name, dtype, count in components(record, state_format)
        if name.startswith("weight")
    )


def state_padded_bytes(layout: RecordLayout, state_format: StateFormat) -> int:
    """Bytes of a slot that holds a record: every component in whole pages."""
    return sum(
        round_up(DTYPE_BYTES[dtype] * count, PAGE_BYTES)
        for _, dtype, count in components(layout, state_format)
    )


def weight_names(record: RecordSpec, compute_dtype: ComputeDtype) -> tuple[str, ...]:
    """The components that forward reads: of a trained record in bf16 compute the upper half."""
    if not record.mutable:
        return tuple(tensor.name for tensor in record.tensors)
    if compute_dtype == "bfloat16":
        return ("weight_hi",)
    return tuple(tensor.name for tensor in record.tensors if tensor.name.startswith("weight"))


def cached_weight_bytes(record: RecordSpec, compute_dtype: ComputeDtype) -> int:
    """Bytes of a record from its start to the end of the weights that forward reads."""
    ((start, stop),) = record.runs(weight_names(record, compute_dtype))
    assert start == 0, record.name
    return stop
