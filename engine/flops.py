"""Floating-point operations of a layer and of the head, from shapes alone. Pure.

A matrix product with a weight of n elements takes 2 n operations a token forward and 4 n
backward (Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1). Causal
attention adds 2 s d forward for rows of s tokens and queries of d elements in all: two products
over the s / 2 positions that a token sees on average.
"""

from .model import EXPERTS, ModelSpec, RecordLayout


def layer_flops(spec: ModelSpec, layout: RecordLayout, *, tokens: int, row_tokens: int) -> float:
    """Operations of one layer's forward pass over `tokens` tokens in rows of `row_tokens`.

    Backward takes `backward_flops`, and these once more where the layer is recomputed.
    """
    matrices = 2.0 * _matrix_elements(spec, layout)
    return tokens * (matrices + _attention_flops(spec, row_tokens))


def backward_flops(spec: ModelSpec, layout: RecordLayout, *, tokens: int, row_tokens: int) -> float:
    """Operations of its backward pass: twice as many, but a frozen weight has no gradient."""
    matrices = (4.0 if layout.base is None else 2.0) * _matrix_elements(spec, layout)
    return tokens * (matrices + 2 * _attention_flops(spec, row_tokens))


def _matrix_elements(spec: ModelSpec, layout: RecordLayout) -> float:
    """Elements that a token is multiplied with: of experts those that it passes."""
    return sum(
        param.num_elements * passed_share(spec, param.name)
        for param in layout.params
        if len(param.full_shape) > 1
    )


def passed_params(spec: ModelSpec) -> int:
    """Elements of the parameters that serve one token: of a mixture some experts' alone. A table
    counts as a whole."""
    return round(
        sum(
            param.num_elements * passed_share(spec, param.name)
            for record in spec.records
            for param in record.params
        )
    )


def passed_share(spec: ModelSpec, name: str) -> float:
    """Of all tokens, those that pass a layer's projection of that name, on average."""
    if spec.experts is None or EXPERTS not in name:
        return 1.0
    return spec.experts.per_token / spec.experts.count


def _attention_flops(spec: ModelSpec, row_tokens: int) -> float:
    return 2.0 * row_tokens * spec.num_heads * spec.head_dim


def head_flops(spec: ModelSpec, *, trained_tokens: int, of_preferences: bool = False) -> float:
    """Operations of projection and loss over `trained_tokens`, forward and backward together.

    Of preferences forward is computed twice: a gradient waits for both answers' sums.
    """
    passes = (6.0 if spec.trains_table else 4.0) + (2.0 if of_preferences else 0.0)
    return passes * spec.vocab_size * spec.hidden_size * trained_tokens
