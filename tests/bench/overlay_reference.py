"""Plain PyTorch for `bench.overlay`: the whole model in memory, bf16 compute, torch's AdamW."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from headrace.engine import TokenDataset, TrainConfig
from headrace.engine.data import step_microbatches
from reference import padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """How a reference trains.

    Without more: bf16 weights, an fp32 master copy, fp32 sums of the microbatches' gradients.
    `permutation` deals the rows of a step differently into microbatches. `autocast`: fp32 weights,
    cast as autocast does. `round_master`: the master is rounded to the nearest bf16 each step.
    """

    permutation: int = 0
    autocast: bool = False
    round_master: bool = False


def train_plain(config: TrainConfig, reference: Reference) -> list[float]:
    """The loss of every step, over the product's batches, at a constant learning rate."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        config.model, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.to(config.device).train()
    master = [param.detach().clone() for param in model.parameters()]
    if not reference.autocast:
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(
        master,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    losses = []
    for step in range(1, (config.max_steps or 0) + 1):
        for weight in master:
            weight.grad = torch.zeros_like(weight)
        losses.append(_accumulate(model, master, config, reference, step))
        clip_grad_norm_(master, config.max_grad_norm)
        optimizer.step()
        with torch.no_grad():
            for param, weight in zip(model.parameters(), master, strict=True):
                if reference.round_master:
                    weight.copy_(weight.bfloat16())
                param.copy_(weight)
    return losses


def _accumulate(
    model: Any, master: list[Tensor], config: TrainConfig, reference: Reference, step: int
) -> float:
    """Gradients of the step's mean loss into the master's; returns that loss."""
    batches = list(_batches(config, reference, step))
    count = sum(ids.numel() - len(ids) for ids in batches)
    total = torch.zeros((), device=config.device)
    for ids in batches:
        casting: Any = nullcontext()
        if reference.autocast:
            casting = torch.autocast(config.device, dtype=torch.bfloat16)
        with casting:
            logits = model(input_ids=ids, use_cache=False).logits
        flat = logits[:, :-1].flatten(0, 1).float()
        loss = cross_entropy(flat, ids[:, 1:].flatten(), reduction="sum") / count
        torch.autograd.backward(loss)
        total += loss.detach()
        for param, weight in zip(model.parameters(), master, strict=True):
            assert weight.grad is not None
            weight.grad += param.grad
            param.grad = None
    return float(total)


def _batches(config: TrainConfig, reference: Reference, step: int) -> Iterator[Tensor]:
    """Token ids of each microbatch, (rows, tokens), on the device."""
    batches = step_microbatches(_open(config.dataset), padded(config), step=step)
    ids = torch.cat([batch.ids for batch in batches])
    if reference.permutation:
        generator = torch.Generator().manual_seed(1000 * reference.permutation + step)
        ids = ids[torch.randperm(len(ids), generator=generator)]
    yield from torch.split(ids.to(config.device), config.microbatch_rows)


def _open(dataset: str) -> TokenDataset:
    return TokenDataset.open(Path(dataset))
