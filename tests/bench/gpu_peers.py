"""The peers of `bench.gpu_step`: plain PyTorch with all of the model in GPU memory, DeepSpeed.

fp32 master weights and AdamW in each; the global norm is taken and clipped to every step, as the
product does.
"""

import os
import tempfile
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import Tensor

from bench.gpu_cases import Case
from headrace.engine import shape_spec

CHUNK_TOKENS = 4096
MAX_GRAD_NORM = 1e9
WARM_STEPS = 2


def measure_pytorch(case: Case, who: str, steps: int, rows_at_once: int) -> dict[str, Any]:
    """fp32 weights, bf16 autocast, fused AdamW; the loss in chunks, as the product's is.

    `pytorch-compiled` compiles the layers as one graph, `pytorch-checkpoint` keeps the layers'
    inputs alone and computes the rest again.
    """
    config = _config(case)
    with torch.device(case.device):
        model: Any = transformers.AutoModelForCausalLM.from_config(config)
    model.train()
    if who == "pytorch-checkpoint":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    body: Callable[..., Any] = model.model
    if who == "pytorch-compiled":
        body = torch.compile(model.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(ids: Tensor) -> None:
        for rows in torch.split(ids, rows_at_once):
            _accumulate(model, body, rows, 1 / ids.numel())
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = _time(case, config.vocab_size, step, steps)
    return _result(model, seconds, rows_at_once)


def measure_deepspeed(case: Case, steps: int) -> dict[str, Any]:
    """ZeRO-3 with parameters and optimizer in host memory, one microbatch, checkpointing on."""
    # Its own detection of the architecture stumbles over "9.0a".
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"
    )
    # A compile that was killed leaves a lock that the next process would wait for, for ever.
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", tempfile.mkdtemp(prefix="deepspeed-ops-"))
    import deepspeed  # type: ignore[import-not-found,unused-ignore]

    config = _config(case)
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    _fill(model)
    rotary = type(model.model.rotary_emb)
    model.model.rotary_emb = rotary(config)  # its tables are made at construction, not loaded
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=_deepspeed_config(case)
    )
    num_params = sum(p.ds_numel for p in model.parameters())

    def step(ids: Tensor) -> None:
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()

    seconds = _time(case, config.vocab_size, step, steps)
    return {**_result(model, seconds, case.rows), "num_params": num_params}


def _deepspeed_config(case: Case) -> dict[str, Any]:
    offload = {"device": "cpu", "pin_memory": case.device == "cuda"}
    return {
        "train_micro_batch_size_per_gpu": case.rows,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": MAX_GRAD_NORM,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": offload,
            "offload_param": offload,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": int(2e8),
            "stage3_max_live_parameters": int(1e9),
            "stage3_prefetch_bucket_size": int(2.5e8),
        },
    }


def _config(case: Case) -> Any:
    values = dict(shape_spec(case.shape, case.layers).config)
    config = transformers.AutoConfig.for_model(**values)
    config._attn_implementation = "sdpa"
    config.use_cache = False
    return config


@torch.no_grad()
def _fill(model: Any) -> None:
    """Random matrices and ones for the norms, quickly: one random tile, again and again."""
    tile = (torch.randn(2**22) * 0.02).to(torch.bfloat16)
    for param in model.parameters():
        flat = param.view(-1)
        if param.dim() == 1:
            flat.fill_(1.0)
        else:
            for part in torch.split(flat, tile.numel()):
                part.copy_(tile[: part.numel()])


def _time(case: Case, vocab: int, step: Callable[[Tensor], None], steps: int) -> list[float]:
    seconds = []
    for _ in range(WARM_STEPS + steps):
        ids = torch.randint(0, vocab, (case.rows, case.tokens_per_row), device=case.device)
        _synchronize(case.device)
        started = perf_counter()
        step(ids)
        _synchronize(case.device)
        seconds.append(perf_counter() - started)
    return seconds


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _result(model: Any, seconds: list[float], rows_at_once: int) -> dict[str, Any]:
    return {
        "num_params": sum(p.numel() for p in model.parameters()),
        "step_seconds": median(seconds[WARM_STEPS:]),
        "all_step_seconds": seconds,
        "microbatch_rows": rows_at_once,
    }


def _accumulate(model: Any, body: Callable[..., Any], ids: Tensor, scale: float) -> None:
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state
        leaf = hidden.detach().requires_grad_()
        flat = leaf[:, :-1].flatten(0, 1)
        targets = ids[:, 1:].flatten()
        for part, wanted in zip(
            torch.split(flat, CHUNK_TOKENS), torch.split(targets, CHUNK_TOKENS), strict=True
        ):
            logits = model.lm_head(part).float()
            loss = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum") * scale
            torch.autograd.backward(loss, retain_graph=True)
    torch.autograd.backward(hidden, leaf.grad)
