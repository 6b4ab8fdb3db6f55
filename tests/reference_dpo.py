"""The oracle of preferences: the same DPO in plain PyTorch, with two whole models in memory.

As in reference.py, the product's part is which rows a step has, and the settings. Each answer goes
through the model and through its frozen copy by itself; log-softmax, loss and AdamW are torch's.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from headrace.engine import TokenDataset, TrainConfig
from headrace.engine.packing import step_rows
from reference import (
    NamedTensors,
    as_stored,
    choose_trained,
    clip_norm,
    learning_rate,
    load_model,
    padded,
    shared_name,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoRun:
    """What a run did. `steps` and `evals` hold means: loss, rewards, margin, accuracy."""

    steps: list[dict[str, float]]
    first_eval: dict[str, float] | None
    last_eval: dict[str, float] | None
    state: NamedTensors
    exp_avg: NamedTensors


def train_dpo(
    config: TrainConfig, num_steps: int, *, eval_dataset_dir: Path | None = None
) -> DpoRun:
    """Train the model of the config on the preferences of its data set, in fp32."""
    model_dir, data = Path(config.model), TokenDataset.open(config.dataset)
    frozen = load_model(model_dir).requires_grad_(False)
    model = choose_trained(load_model(model_dir), config)
    trained = {shared_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        trained.values(), betas=(config.beta1, config.beta2), eps=config.eps,
        weight_decay=config.weight_decay,
    )  # fmt: skip
    held_out = None if eval_dataset_dir is None else TokenDataset.open(eval_dataset_dir)

    def evaluated() -> dict[str, float] | None:
        if held_out is None:
            return None
        with torch.no_grad():
            return _mean([_pair(model, frozen, held_out, i, config)
                          for i in range(held_out.num_rows)])[1]  # fmt: skip

    first = evaluated()
    steps = []
    for step in range(1, num_steps + 1):
        rows = step_rows(data.lengths, padded(config), step)
        loss, said = _mean([_pair(model, frozen, data, int(i), config) for i in rows])
        torch.autograd.backward(loss)
        clip_grad_norm_(trained.values(), clip_norm(config))
        optimizer.param_groups[0]["lr"] = learning_rate(step, num_steps, config)
        optimizer.step()
        optimizer.zero_grad()
        steps.append(said)
    names = {param: name for name, param in trained.items()}
    moments = {names[param]: one["exp_avg"] for param, one in optimizer.state.items()}
    return DpoRun(
        steps=steps,
        first_eval=first,
        last_eval=evaluated(),
        state=as_stored(model, trained),
        exp_avg=as_stored(model, moments),
    )


def _pair(
    model: PreTrainedModel,
    frozen: PreTrainedModel,
    data: TokenDataset,
    row: int,
    config: TrainConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and both rewards of one preference."""
    chosen, rejected = (
        config.dpo_beta * (_log_prob(model, *answer) - _log_prob(frozen, *answer))
        for answer in data.answers(row)
    )
    smoothing = config.dpo_label_smoothing
    margin = chosen - rejected
    loss = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
    return loss, chosen, rejected


def _log_prob(model: PreTrainedModel, ids: object, labels: object) -> Tensor:
    """Of an answer's trained tokens, the sum."""
    tokens, wanted = (torch.as_tensor(values) for values in (ids, labels))
    logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1].double()
    each = logits.log_softmax(-1).gather(1, tokens[1:, None]).squeeze(1)
    log_prob: Tensor = each[wanted[1:] != -100].sum()
    return log_prob


def _mean(pairs: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, dict[str, float]]:
    loss, chosen, rejected = (torch.stack(values) for values in zip(*pairs, strict=True))
    said = {
        "loss": loss.mean(),
        "reward_chosen": chosen.mean(),
        "reward_rejected": rejected.mean(),
        "reward_margin": (chosen - rejected).mean(),
        "reward_accuracy": (chosen > rejected).double().mean(),
    }
    return loss.mean(), {name: float(value.detach()) for name, value in said.items()}
