"""Logits of a few short prompts, in float32, with the weights of one record in memory at a time.

It stands apart from a run's own forward pass: no ring, no plan, no state, only weights as they are
read from somewhere. So what is in a store and what is in files can be compared, whatever the size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .export import ReadPieces
from .layer import LayerModule
from .model import EMBEDDING, NORM, ModelSpec, ParamSpec, RecordLayout
from .places import Positions

Named = dict[str, Tensor]  # parameters by their names in the whole model, fp32
Change = Callable[[Named], Named]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is made of the weights that are read before they are computed with, and the layout of
    the model that this gives."""

    spec: ModelSpec
    change: Change = dict


def streamed_logits(
    spec: ModelSpec,
    read_pieces: ReadPieces,
    prompts: Sequence[Tensor],
    *,
    device: torch.device,
    views: Sequence[View],
) -> list[list[Tensor]]:
    """For each view the logits (tokens, vocabulary) of each prompt (int64, 1-D), on the CPU.

    The weights of `spec` are read once for all views, the embedding once more where it is the head.
    """
    stream = _Stream(read_pieces, device)
    passes = [_Pass(view, prompts, device) for view in views]
    for layout in spec.of_kind("embedding"):
        stream.each(layout, lambda param, rows: [one.embed(param, rows) for one in passes])
    beside = spec.beside
    for layout in spec.of_kind("layer"):
        named = stream.named(layout)
        if layout.name in beside:
            named |= stream.named(beside[layout.name])
        for one in passes:
            one.layer(layout, named)
    (norm,) = spec.of_kind("norm")
    weight = stream.named(norm)
    for one in passes:
        one.norm(weight)
    for layout in spec.of_kind("embedding" if spec.tied else "head"):
        stream.each(layout, lambda param, rows: [one.project(param, rows) for one in passes])
    return [one.logits() for one in passes]


class _Stream:
    """Reads records to the device."""

    def __init__(self, read_pieces: ReadPieces, device: torch.device) -> None:
        self._read_pieces = read_pieces
        self._device = device

    def named(self, layout: RecordLayout) -> Named:
        """A record's parameters, whole."""
        flat = torch.empty(layout.num_elements, device=self._device)
        places = {param.name: param for param in layout.params}
        for piece, values in self._read_pieces(layout):
            whole = places[piece.name]
            row = whole.num_elements // whole.shape[0]
            start = whole.offset + (piece.row_start - whole.row_start) * row
            flat[start : start + piece.num_elements].copy_(values)
        return {
            param.name: flat[param.offset : param.offset + param.num_elements].view(param.shape)
            for param in layout.params
        }

    def each(self, layout: RecordLayout, use: Callable[[ParamSpec, Tensor], object]) -> None:
        """Hand on the pieces of a table, (rows, columns)."""
        for piece, values in self._read_pieces(layout):
            use(piece, values.to(self._device).view(piece.shape))


class _Pass:
    """The prompts on their way through the layers, by one view of the weights."""

    def __init__(self, view: View, prompts: Sequence[Tensor], device: torch.device) -> None:
        self._view = view
        self._module = LayerModule(view.spec, device=device, dtype=torch.float32)
        self._layouts = {layout.name: layout for layout in view.spec.records}
        self._ids = [ids.to(device) for ids in prompts]
        self._positions: list[Positions] = [
            self._module.positions(len(ids), torch.tensor([len(ids)]), packed=False)
            for ids in prompts
        ]
        width, vocab = view.spec.hidden_size, view.spec.vocab_size
        self._hidden = [torch.empty(1, len(ids), width, device=device) for ids in prompts]
        self._logits = [torch.empty(len(ids), vocab) for ids in prompts]

    @torch.no_grad()
    def embed(self, param: ParamSpec, rows: Tensor) -> None:
        first = param.row_start
        for ids, hidden in zip(self._ids, self._hidden, strict=True):
            here = (ids >= first) & (ids < first + len(rows))
            found = self._view.change({EMBEDDING: rows[ids[here] - first]})[EMBEDDING]
            places = torch.arange(len(found), device=found.device)
            hidden[0, here] = self._module.embed(places, found)

    def layer(self, layout: RecordLayout, named: Named) -> None:
        weights = _short(self._view.change(named))
        for i, hidden in enumerate(self._hidden):
            self._hidden[i] = self._module.forward_only(
                self._layouts[layout.name], weights, hidden, self._positions[i]
            )

    @torch.no_grad()
    def norm(self, named: Named) -> None:
        weight = self._view.change(named)[NORM]
        self._hidden = [self._module.norm(weight, hidden) for hidden in self._hidden]

    @torch.no_grad()
    def project(self, param: ParamSpec, rows: Tensor) -> None:
        table = self._view.change({param.name: rows})[param.name]
        cap = self._module.logit_softcap
        for hidden, logits in zip(self._hidden, self._logits, strict=True):
            found = hidden[0] @ table.t()
            if cap is not None:
                found = torch.tanh(found / cap) * cap
            logits[:, param.row_start : param.row_start + len(rows)] = found.cpu()

    def logits(self) -> list[Tensor]:
        return self._logits


def _short(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A layer's parameters by their names within the layer."""
    return {name.split(".", 3)[3]: values for name, values in named.items()}
