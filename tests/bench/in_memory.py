"""The same fine-tuning with transformers, peft and torch's AdamW, the whole model in memory.

Not the exact oracle (`reference.py`, fp32, row by row) but what people run: rows padded into
batches, autocast where the product computes in bfloat16, fused AdamW on fp32 weights. A frozen
base is in the compute dtype; a coded one has been coded and decoded beforehand, with the product's
own codes, so that both train beside the same base.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

from headrace.engine import TokenDataset, TrainConfig, num_steps
from headrace.engine.data import Microbatch, eval_microbatches, step_microbatches
from headrace.engine.packing import Arrangement
from reference import choose_trained, learning_rate, padded, shared_name

LORA = (".lora_A.weight", ".lora_B.weight")


def train_in_memory(
    config: TrainConfig, model_dir: Path, told: Callable[[int, float], None]
) -> dict[str, Tensor]:
    """Train on the rows of the product's steps; what was trained, by the checkpoint's names.

    `told` hears of each step and its loss.
    """
    half = config.compute_dtype == "bfloat16"
    frozen = torch.bfloat16 if half and config.method == "lora" else torch.float32
    model: Any = load(model_dir, frozen, config.device)
    model = choose_trained(model, config).to(config.device).train()
    trained = {shared_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        trained.values(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
    data = TokenDataset.open(config.dataset, packed=False)
    total = num_steps(
        data.num_rows,
        batch_rows=config.batch_rows,
        num_epochs=config.num_epochs,
        max_steps=config.max_steps,
    )
    casting: Any = torch.autocast(config.device, dtype=torch.bfloat16) if half else nullcontext()
    for step in range(1, total + 1):
        batches = step_microbatches(data, padded(config), step=step)
        count = sum(batch.num_trained for batch in batches)
        loss = torch.zeros((), device=config.device)
        for batch in batches:
            with casting:
                part = loss_sum(model, batch) / count
            torch.autograd.backward(part)
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(trained.values(), config.max_grad_norm)
        optimizer.param_groups[0]["lr"] = learning_rate(step, total, config)
        optimizer.step()
        optimizer.zero_grad()
        told(step, float(loss))
    return {name: param.detach().float().cpu() for name, param in trained.items()}


def load(model_dir: Path, dtype: torch.dtype, device: str) -> Any:
    """The model of a directory on a device. Its embedding trains every row, as the product does."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    model.model.embed_tokens.padding_idx = None
    return model.to(device)


def loss_sum(model: Any, batch: Microbatch) -> Tensor:
    """Cross entropy summed over the trained tokens. Padding lies behind the rows: nothing that
    counts attends to it."""
    ids, labels = batch.ids.to(model.device), batch.labels.to(model.device)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


@torch.no_grad()
def mean_loss(model: Any, dataset: Path, batch_rows: int) -> float:
    """Mean loss per trained token over a data set."""
    data = TokenDataset.open(dataset, packed=False)
    rows = Arrangement(seed=0, batch_rows=batch_rows, microbatch_rows=batch_rows)
    total, count = 0.0, 0
    for batch in eval_microbatches(data, rows):
        total += float(loss_sum(model, batch))
        count += batch.num_trained
    return total / count


@torch.no_grad()
def put_in(model: Any, config: TrainConfig, trained: Mapping[str, Tensor]) -> None:
    """Give an untrained fp32 model the weights that were trained, or merge trained adapters."""
    weights = dict(model.named_parameters())
    if config.method == "full":
        for name, values in trained.items():
            weights[name].copy_(values)
        return
    scaling = config.lora_alpha / config.lora_rank
    for down, up in ((name, name.replace(*LORA)) for name in trained if name.endswith(LORA[0])):
        weight = weights[down.replace(LORA[0], ".weight")]
        weight.addmm_(trained[up], trained[down], alpha=scaling)
