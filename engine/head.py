"""Final norm, output projection and cross entropy, in chunks of tokens, with immediate backward.

Only positions that the loss counts are projected, and at most `chunk_tokens` of them at a time,
so that the logits never take more than chunk_tokens x vocabulary, whatever the batch. The idea is
that of the fused linear cross entropy of Liger (Hsu et al., 2024): the gradient of the logits
replaces them in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .example import NOT_TRAINED
from .layer import LayerModule, own_version
from .totals import Totals

_VOCAB_PIECE = 16384  # rows of the table whose gradient is formed at once in bf16 compute


@dataclass(slots=True)
class LossSums:
    """Running sums over the tokens that the loss counts; scalars stay on the device."""

    loss: Tensor
    correct: Tensor
    num_trained: int = field(default=0)
    of_targets: list[Tensor] | None = None  # each target's loss, fp32, in pieces, where asked for

    @classmethod
    def zero(cls, device: torch.device) -> "LossSums":
        """Nothing seen yet."""
        return cls(
            torch.zeros((), dtype=torch.float64, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
        )

    def losses(self) -> Tensor | None:
        """The loss of every target, in their order, on the host; waits for the device."""
        return torch.cat(self.of_targets).cpu() if self.of_targets else None

    def totals(self) -> Totals:
        """The sums as numbers; waits for the device."""
        return Totals(
            loss_sum=float(self.loss),
            num_items=self.num_trained,
            num_correct=int(self.correct),
            num_judged=self.num_trained,
            num_trained=self.num_trained,
        )


Targets = tuple[Tensor, Tensor]


def targets_of(labels: Tensor) -> Targets:
    """Flat positions that predict a trained token, and that token, both int64 (targets,).

    `labels` is (rows, tokens), int64, on the host, since the number of targets is needed there.
    Position t predicts label t + 1; the last position of a row predicts nothing. One thread does
    it: torch's own would wait for cores on which the last step's updates are still being made (8 to
    22 ms a microbatch beside fifteen of them).
    """
    shifted = np.full(labels.shape, NOT_TRAINED, dtype=np.int64)
    shifted[:, :-1] = labels.numpy()[:, 1:]
    flat = shifted.reshape(-1)
    (positions,) = np.nonzero(flat != NOT_TRAINED)
    return torch.from_numpy(positions), torch.from_numpy(flat[positions])


def head_loss(
    module: LayerModule,
    hidden: Tensor,
    targets: Targets,
    *,
    norm_weight: Tensor,
    table: Tensor,
    chunk_tokens: int,
    sums: LossSums,
) -> None:
    """Add the loss of one microbatch to `sums`, without gradients.

    `hidden` is (rows, tokens, hidden), `table` (vocabulary, hidden), `targets` of targets_of.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    for chunk, wanted in _chunks(targets, chunk_tokens):
        normed = module.norm(norm_weight, rows[chunk])
        logits, _ = _capped(normed @ table.t(), module.logit_softcap)
        _loss_and_probabilities(logits, wanted, sums)


def target_log_probs(
    module: LayerModule,
    hidden: Tensor,
    targets: Targets,
    *,
    norm_weight: Tensor,
    table: Tensor,
    chunk_tokens: int,
) -> tuple[Tensor, Tensor]:
    """The log-probability of each target, fp32, and whether it is the likeliest token; (targets,).

    Arguments as of head_loss.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    found = [torch.zeros(0, device=hidden.device)]
    right = [torch.zeros(0, dtype=torch.bool, device=hidden.device)]
    for chunk, wanted in _chunks(targets, chunk_tokens):
        normed = module.norm(norm_weight, rows[chunk])
        logits, _ = _capped(normed @ table.t(), module.logit_softcap)
        log_probs, hits, _ = _softmax(logits, wanted)
        found.append(log_probs)
        right.append(hits)
    return torch.cat(found), torch.cat(right)


def head_logits(module: LayerModule, hidden: Tensor, norm_weight: Tensor, table: Tensor) -> Tensor:
    """Logits of what follows each of `hidden` (rows, hidden): fp32, (rows, vocabulary)."""
    logits, _ = _capped(module.norm(norm_weight, hidden) @ table.t(), module.logit_softcap)
    return logits.float()


def head_backward(
    module: LayerModule,
    hidden: Tensor,
    targets: Targets,
    *,
    norm_weight: Tensor,
    table: Tensor,
    norm_grad: Tensor | None,
    table_grad: Tensor | None,
    loss_scale: float | Tensor,
    chunk_tokens: int,
    sums: LossSums,
) -> Tensor:
    """Add one microbatch's loss to `sums` and its gradients to the fp32 accumulators.

    There is no accumulator for what is frozen.
    The loss is the sum over trained tokens of cross entropy times `loss_scale`: one over their
    count in the whole step, or a number for each target, fp32 (targets,). Returns the gradient of
    `hidden`, in its shape and dtype.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    grad = torch.zeros_like(rows)
    weight = own_version(norm_weight).requires_grad_()
    chunks = _chunks(targets, chunk_tokens)
    scales: Sequence[float | Tensor] = [loss_scale] * len(chunks)
    if isinstance(loss_scale, Tensor):
        scales = torch.split(loss_scale[:, None], [len(wanted) for _, wanted in chunks])
    for (chunk, wanted), scale in zip(chunks, scales, strict=True):
        inputs = rows[chunk].requires_grad_()
        with torch.enable_grad():
            normed = module.norm(weight, inputs)
        flat = normed.detach()
        logits, slope = _capped(flat @ table.t(), module.logit_softcap)
        logits_grad = _loss_and_probabilities(logits, wanted, sums)
        logits_grad[torch.arange(len(wanted), device=wanted.device), wanted] -= 1
        logits_grad *= scale
        if slope is not None:
            logits_grad *= slope
        logits_grad = logits_grad.to(flat.dtype)
        if table_grad is not None:
            _accumulate_table_grad(table_grad, logits_grad, flat)
        leaves = [inputs] if norm_grad is None else [inputs, weight]
        grads = torch.autograd.grad(normed, leaves, logits_grad @ table)
        grad[chunk] = grads[0]
        if norm_grad is not None:
            norm_grad += grads[1]
    return grad.view_as(hidden)


def _chunks(targets: Targets, size: int) -> list[Targets]:
    positions, wanted = targets
    if positions.numel() == 0:
        return []
    return list(zip(torch.split(positions, size), torch.split(wanted, size), strict=True))


def _capped(logits: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """The logits bounded as softcap * tanh(logits / softcap), and the slope of that; both fp32."""
    if softcap is None:
        return logits, None
    bent = logits.float().div_(softcap).tanh_()
    slope = 1 - bent.square()
    return bent.mul_(softcap), slope


def _loss_and_probabilities(logits: Tensor, targets: Tensor, sums: LossSums) -> Tensor:
    """Add cross entropy and hits to `sums`; returns fp32 probabilities, in the logits' place."""
    log_probs, hits, probabilities = _softmax(logits, targets)
    sums.loss += -log_probs.double().sum()
    if sums.of_targets is not None:
        sums.of_targets.append(-log_probs)
    sums.correct += hits.sum()
    sums.num_trained += len(targets)
    return probabilities


def _softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each target's log-probability, whether it is the likeliest, and all probabilities; fp32, the
    last in the logits' place."""
    logits = logits.float()
    peak, guess = logits.max(dim=1, keepdim=True)
    logits -= peak
    wanted = logits.gather(1, targets[:, None]).squeeze(1)
    logits.exp_()
    total = logits.sum(dim=1, keepdim=True)
    logits /= total
    return wanted - total.squeeze(1).log(), guess.squeeze(1) == targets, logits


def _accumulate_table_grad(table_grad: Tensor, logits_grad: Tensor, normed: Tensor) -> None:
    """table_grad += logits_grad^T @ normed, in fp32, without a second table in fp32 compute."""
    if normed.dtype == torch.float32:
        table_grad.addmm_(logits_grad.t(), normed)
        return
    for grad, columns in zip(
        torch.split(table_grad, _VOCAB_PIECE),
        torch.split(logits_grad, _VOCAB_PIECE, dim=1),
        strict=True,
    ):
        grad += columns.t() @ normed
