"""What sample texts hold on the device while they are written. Pure, no torch."""

from headrace.storage import DTYPE_BYTES

from .config import TrainConfig
from .model import ModelSpec

TOKENIZER_BYTES = 1100  # of a word, in main memory; measured with a vocabulary of 49 thousand


def sample_bytes(spec: ModelSpec, config: TrainConfig) -> int:
    """Bytes of texts under way: keys and values of every layer, and what passes through the layers.

    The latter are a layer's input and output for every prompt and the logits, in the compute dtype
    and twice in float32. A layer's own work on one prompt is no more than a step's on a row.
    """
    width = DTYPE_BYTES[config.compute_dtype]
    tokens = min(spec.max_positions, config.sample_prompt_tokens + config.sample_tokens)
    remembered = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * tokens
    tokenizer = TOKENIZER_BYTES * spec.vocab_size if config.num_samples else 0
    passing = 2 * spec.hidden_size * config.sample_prompt_tokens + spec.vocab_size
    texts = config.num_samples * ((remembered + passing) * width + 2 * 4 * spec.vocab_size)
    return texts + (tokenizer if config.device == "cpu" else 0)  # else it is no memory of this tier
