"""The oracle: the same fine-tuning in plain PyTorch, with the whole model in memory.

Slower and simpler than the product on purpose. Of the product it takes which rows a step has
(data.py) and the settings (TrainConfig) alone; each row goes through the model by itself. Model,
loss, clipping and AdamW are those of transformers and torch, and the learning rate is written out
again here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedModel

from expert_adapters import AdaptedMixture
from headrace.engine import TokenDataset, TrainConfig, num_steps, read_model_spec
from headrace.engine.adapter_values import initial_adapter
from headrace.engine.data import Microbatch, eval_microbatches, step_microbatches
from headrace.engine.methods import method_spec
from headrace.engine.packing import Arrangement

NamedTensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """What a run did and left behind. Tensors are fp32 on the CPU, by the checkpoint's names.

    `losses` (mean per trained token of the step), `aux_losses` (of a mixture whose experts are
    balanced, without their coefficient) and `grad_norms` (before clipping) have one entry a step.
    `eval_losses` maps a step to the evaluation loss after it; 0 is before training.
    """

    losses: list[float]
    aux_losses: list[float]
    grad_norms: list[float]
    eval_losses: dict[int, float]
    state: NamedTensors
    exp_avg: NamedTensors
    exp_avg_sq: NamedTensors


def train_reference(
    model_dir: Path,
    dataset_dir: Path,
    config: TrainConfig,
    *,
    eval_dataset_dir: Path | None = None,
    device: str = "cpu",
) -> ReferenceRun:
    """Fine-tune the model in fp32 on the rows of the product's steps, by torch's AdamW.

    A step whose gradient is not finite changes nothing and is no update of AdamW. ValueError for
    settings that plain PyTorch has no counterpart of.
    """
    clip = clip_norm(config)
    model = load_model(model_dir).to(device)
    model = choose_trained(model, config)
    dataset = TokenDataset.open(dataset_dir)
    eval_dataset = TokenDataset.open(eval_dataset_dir) if eval_dataset_dir else None
    trained = {shared_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        trained.values(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    total = num_steps(
        dataset.num_rows,
        batch_rows=config.batch_rows,
        num_epochs=config.num_epochs,
        max_steps=config.max_steps,
    )
    losses, aux_losses, norms, eval_losses = [], [], [], {}
    for step in range(total + 1):
        if step > 0:
            batches = step_microbatches(dataset, padded(config), step=step)
            losses.append(_accumulate_gradients(model, dataset, batches))
            if coefficient := balance_coefficient(model, config):
                loss = balance_loss(model, dataset, batches)
                torch.autograd.backward(coefficient * loss)
                aux_losses.append(float(loss.detach()))
            norms.append(float(clip_grad_norm_(trained.values(), clip)))
            optimizer.param_groups[0]["lr"] = learning_rate(step, total, config)
            if math.isfinite(norms[-1]):
                optimizer.step()
            optimizer.zero_grad()
        if eval_dataset is not None and _evaluates_after(step, total, config):
            eval_losses[step] = evaluate(model, eval_dataset)
    names = {param: name for name, param in trained.items()}
    moments = {names[param]: values for param, values in optimizer.state.items()}
    return ReferenceRun(
        losses=losses,
        aux_losses=aux_losses,
        grad_norms=norms,
        eval_losses=eval_losses,
        state=as_stored(model, trained),
        exp_avg=as_stored(model, {name: one["exp_avg"] for name, one in moments.items()}),
        exp_avg_sq=as_stored(model, {name: one["exp_avg_sq"] for name, one in moments.items()}),
    )


def load_model(model_dir: Path) -> PreTrainedModel:
    """The model in fp32, without dropout, read by transformers: a GGUF file or safetensors.

    transformers' embedding drops the gradient of every token that equals `pad_token_id`, and many
    chat models pad with the token that ends a turn. The loss depends on that row as on any other,
    so the whole gradient is asked for here; padding itself has none, whatever its token.
    """
    gguf = sorted(Path(model_dir).glob("*.gguf"))
    source = {"gguf_file": gguf[0].name} if gguf else {}
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, **source)
    model.model.embed_tokens.padding_idx = None
    return model.eval()


def choose_trained(model: PreTrainedModel, config: TrainConfig) -> PreTrainedModel:
    """The model with what the method freezes frozen, and with peft's adapters for LoRA.

    The adapters begin with the product's own values: peft draws others for the same seed.
    """
    for name, param in model.named_parameters():
        param.requires_grad_(not any(fnmatchcase(name, pattern) for pattern in config.freeze))
    if config.method != "lora":
        return model
    values = first_adapters(config)
    if any(".experts." in name for name in values):
        return AdaptedMixture(model, values, lora_scaling(config))
    from peft import LoraConfig, get_peft_model

    targets = list(config.lora_targets)
    adapters = LoraConfig(
        r=config.lora_rank,
        lora_alpha=int(config.lora_alpha),
        use_rslora=config.lora_rslora,
        target_modules=targets if len(targets) > 1 else targets[0],
    )
    adapted = get_peft_model(model, adapters)
    for name, param in adapted.named_parameters():
        if param.requires_grad:
            param.data.copy_(values.pop(shared_name(name)))
    assert not values, f"peft has no {sorted(values)}"
    return adapted


def lora_scaling(config: TrainConfig) -> float:
    """What the product of an adapter's matrices is multiplied by."""
    root = math.sqrt(config.lora_rank) if config.lora_rslora else config.lora_rank
    return config.lora_alpha / root


def first_adapters(config: TrainConfig) -> NamedTensors:
    """The adapters that a run begins with, by the checkpoint's names."""
    spec = method_spec(read_model_spec(config.model), config)
    found = {}
    for record in spec.of_kind("beside"):
        flat = initial_adapter(record, config.seed)
        for param in record.params:
            values = flat[param.offset : param.offset + param.num_elements]
            found[param.name] = values.view(param.shape)
    return found


def as_stored(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> NamedTensors:
    """The tensors on the CPU as files hold them: transformers' stacked experts one by one."""
    found: NamedTensors = {}
    for name, values in _on_cpu(tensors).items():
        layer, _, stack = name.partition(".mlp.experts.")
        if stack not in ("gate_up_proj", "down_proj"):
            found[name] = values
            continue
        parts = ("gate_proj", "up_proj") if stack == "gate_up_proj" else ("down_proj",)
        for i, one in enumerate(values):
            for part, rows in zip(parts, one.chunk(len(parts)), strict=True):
                found[f"{layer}.mlp.experts.{i}.{part}.weight"] = rows
    if model.config.model_type != "mixtral":
        return found
    for ours, theirs in {".mlp.": ".block_sparse_moe.", "gate_proj": "w1", "down_proj": "w2",
                         "up_proj": "w3"}.items():  # fmt: skip
        found = {name.replace(ours, theirs): values for name, values in found.items()}
    return found


def shared_name(name: str) -> str:
    """A parameter's name as the product has it: without what peft puts around and into it."""
    return name.removeprefix("base_model.model.").replace(".default.", ".")


def padded(config: TrainConfig) -> Arrangement:
    """The rows of the settings' steps, whether the product packs them or not."""
    return Arrangement(
        seed=config.seed, batch_rows=config.batch_rows, microbatch_rows=config.microbatch_rows
    )


def learning_rate(step: int, total: int, config: TrainConfig) -> float:
    """Rate of step `step` (from 1) of `total`: linear warm-up, then the schedule down towards 0."""
    warmup = math.ceil(config.warmup_ratio * total)
    if step <= warmup:
        return config.learning_rate * step / warmup
    progress = (step - 1 - warmup) / max(1, total - warmup)
    if config.lr_schedule == "linear":
        return config.learning_rate * (1 - progress)
    if config.lr_schedule == "cosine":
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate


@torch.no_grad()
def evaluate(model: PreTrainedModel, dataset: TokenDataset, *, microbatch_rows: int = 4) -> float:
    """Mean loss per trained token over the whole data set, on the model's device."""
    loss, count = 0.0, 0
    arrangement = Arrangement(seed=0, batch_rows=microbatch_rows, microbatch_rows=microbatch_rows)
    for batch in eval_microbatches(dataset, arrangement):
        loss += float(_loss_sum(model, dataset, batch))
        count += batch.num_trained
    return loss / count


def relative_differences(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> dict[str, float]:
    """‖actual - expected‖ / ‖expected‖ for each tensor; AssertionError when the names differ."""
    assert set(actual) == set(expected), set(actual) ^ set(expected)
    return {
        name: float((actual[name].double() - wanted.double()).norm() / wanted.double().norm())
        for name, wanted in expected.items()
    }


def read_checkpoint(model_dir: Path) -> NamedTensors:
    """All tensors of a Hugging Face directory as fp32, by name."""
    tensors: NamedTensors = {}
    for shard in sorted(Path(model_dir).glob("*.safetensors")):
        tensors |= load_file(shard)
    return {name: tensor.float() for name, tensor in tensors.items()}


def balance_coefficient(model: PreTrainedModel, config: TrainConfig) -> float:
    """What transformers would multiply a mixture's auxiliary loss with; 0 where it adds none."""
    if config.router_aux_loss_coef is not None:
        return config.router_aux_loss_coef
    if not getattr(model.config, "output_router_logits", False):
        return 0.0
    return float(model.config.router_aux_loss_coef)


def balance_loss(
    model: PreTrainedModel, dataset: TokenDataset, batches: list[Microbatch]
) -> Tensor:
    """transformers' auxiliary loss of a mixture, of the step's rows as one padded batch."""
    rows = [torch.from_numpy(dataset.row(i)[0]) for batch in batches for i in batch.row_indices]
    ids = pad_sequence(rows, batch_first=True)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    found = model(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        use_cache=False,
        output_router_logits=True,
    )
    loss: Tensor = found.aux_loss
    return loss


def clip_norm(config: TrainConfig) -> float:
    """The norm to clip at; infinity when nothing is clipped."""
    if config.clip_mode not in ("exact", "none"):
        raise ValueError(f"the reference clips exactly or not at all, not {config.clip_mode!r}")
    if config.compute_dtype != "float32":
        raise ValueError(f"the reference computes in float32, not {config.compute_dtype}")
    return config.max_grad_norm if config.clip_mode == "exact" else math.inf


def _evaluates_after(step: int, total: int, config: TrainConfig) -> bool:
    every = config.eval_every_steps
    return step in (0, total) or bool(every and step % every == 0)


def _accumulate_gradients(
    model: PreTrainedModel, dataset: TokenDataset, batches: list[Microbatch]
) -> float:
    """Gradients of the mean loss over the trained tokens of the whole step; returns that loss."""
    count = sum(batch.num_trained for batch in batches)
    total = 0.0
    for batch in batches:
        loss = _loss_sum(model, dataset, batch) / count
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total


def _loss_sum(model: PreTrainedModel, dataset: TokenDataset, batch: Microbatch) -> Tensor:
    """Cross entropy of the rows, each by itself, summed over the tokens that are predicted."""
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    for i in batch.row_indices:
        ids, labels = (torch.from_numpy(values).to(model.device) for values in dataset.row(i))
        # Over a large vocabulary torch's fp32 log-softmax is off by some 5e-6, more than the rest.
        logits = model(input_ids=ids[None], use_cache=False).logits[0].double()
        total = total + cross_entropy(logits[:-1], labels[1:], reduction="sum")
    return total


def _on_cpu(tensors: Mapping[str, Tensor]) -> NamedTensors:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
