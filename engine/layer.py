"""Forward and backward of one resident layer: transformers' own module, bound to slot views."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from . import attention
from .attention import Documents
from .compiling import mark_sizes, start_compiler
from .config import Compile
from .experts import Routed, RouterTap, split_experts
from .families import FAMILIES
from .hf_config import build_config
from .lora import adapted
from .lora_layer import add_adapters
from .model import LAYERS, ModelSpec, RecordLayout

Weights = Mapping[str, Tensor]
# By kind of layer: rotary cosines and sines, (1, tokens, head), and the packed documents.
Positions = Mapping[str, tuple[Tensor, Tensor, Documents | None]]

_STRETCHED = ("dynamic", "longrope")  # kinds of rotary positions that depend on a row's length


def param_views(flat: Tensor, layout: RecordLayout) -> dict[str, Tensor]:
    """The parameters of a record as shaped views of a flat component, by their short names."""
    return {
        _short_name(param.name): flat[param.offset : param.offset + param.num_elements].view(
            param.shape
        )
        for param in layout.params
    }


def trained_names(spec: ModelSpec, layout: RecordLayout) -> frozenset[str]:
    """Short names of a layer's parameters that are trained."""
    record = layout if layout.base is None else spec.beside.get(layout.name)
    return frozenset(_short_name(param.name) for param in record.params) if record else frozenset()


def _short_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `mlp.up_proj.weight`; others keep their last part."""
    if name.startswith(LAYERS):
        return name.removeprefix(LAYERS).split(".", 1)[1]
    return name.rsplit(".", 1)[-1]


class LayerModule:
    """The decoder layers of each kind and the final norm of a model, without memory of their own.

    Attention is causal and padding comes last, behind a row or as a document of its own, so no real
    token attends to it; padded positions compute values that nothing reads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        device: torch.device,
        dtype: torch.dtype,
        compile: Compile = "off",
    ) -> None:
        self._family = FAMILIES[spec.family]
        self._classes = import_module(
            f"transformers.models.{self._family.module}.modeling_{self._family.module}"
        )
        self._config = build_config(spec, dtype=dtype)
        self._config._attn_implementation = attention.NAME
        self._spec = spec
        self._device = device
        self._dtype = dtype
        self._compiled = compile != "off"
        if self._compiled:
            start_compiler()
        self._kinds = dict.fromkeys(kind.name for kind in spec.layer_kinds)
        self._calls: dict[str, tuple[str, Callable[..., Tensor], RouterTap | None]] = {}
        self._trained = {
            layout.name: trained_names(spec, layout) for layout in spec.of_kind("layer")
        }
        built: dict[tuple[str, ...], tuple[Callable[..., Tensor], RouterTap | None]] = {}
        for i, (layout, kind) in enumerate(
            zip(spec.of_kind("layer"), spec.layer_kinds, strict=True)
        ):
            names = adapted(spec.lora, layout) if spec.lora else []
            key = (kind.name, str(len(layout.params)), *names)
            if key not in built:
                built[key] = self._build(i, compile, names)
            self._calls[layout.name] = (kind.name, *built[key])
        norm = self._class("RMSNorm")
        with torch.device("meta"):
            self._norm = _frozen(norm(spec.hidden_size, eps=self._config.rms_norm_eps))
        self.logit_softcap = spec.logit_softcap
        # The scale itself is of the compute dtype: 55.5 rather than 55.4256 in bfloat16.
        self.embedding_scale = float(torch.tensor(spec.embedding_scale).to(dtype))

    def _class(self, name: str) -> Any:
        return getattr(self._classes, self._family.prefix + name)

    def _build(
        self, index: int, compile: Compile, names: Sequence[str]
    ) -> tuple[Callable[..., Tensor], RouterTap | None]:
        """What computes a layer of the kind that the layer with this index has, with adapters on
        the projections of these names; and the tap of its router, if it has one."""
        experts = self._spec.experts
        with torch.device("meta"):
            layer = self._class("DecoderLayer")(self._config, layer_idx=index)
            tap = split_experts(layer, experts) if experts is not None else None
            if self._spec.lora is not None:
                add_adapters(layer, names, self._spec.lora)
        layer = _frozen(layer)

        def apply(
            weights: dict[str, Tensor],
            hidden: Tensor,
            cos: Tensor,
            sin: Tensor,
            documents: Documents | None,
        ) -> Tensor:
            # What a token sees is up to attention.py: no mask is made here.
            arguments: dict[str, Any] = {
                "position_embeddings": (cos, sin),
                "attention_mask": None,
                "documents": documents,
            }
            output = functional_call(layer, weights, (hidden,), arguments)
            assert isinstance(output, Tensor)
            return output

        if not self._compiled or tap:  # which experts a token meets, no graph can know
            return apply, tap
        return torch.compile(apply, dynamic=compile == "dynamic"), None

    def positions(self, num_tokens: int, lengths: Tensor, *, packed: bool) -> Positions:
        """What tells tokens their places, by kind of layer.

        `lengths` (int64, on the host) are those of the rows, `num_tokens` wide, or of the documents
        that are packed into one: places start again with each.
        """
        documents = Documents.of(lengths, self._device) if packed else None
        places = torch.arange(num_tokens)[None] if documents is None else documents.position_ids()
        pieces: Sequence[Tensor] = [places]
        if _stretches(self._rotary()):
            pieces = [torch.arange(length)[None] for length in lengths.tolist() if length]
        like = torch.empty((1, 1, 1), dtype=self._dtype, device=self._device)

        def turn(*kind: str) -> tuple[Tensor, Tensor, Documents | None]:
            parts = [self._rotary()(like, piece.to(self._device), *kind) for piece in pieces]
            cos, sin = (_join(part, num_tokens, packed) for part in zip(*parts, strict=True))
            return cos, sin, documents

        if self._family.rope_per_kind:
            return {kind: turn(kind) for kind in self._kinds}
        return dict.fromkeys(self._kinds, turn())

    def _rotary(self) -> Any:
        """The rotary module, made anew: one that stretches with the longest row it has seen would
        make the result depend on what came before, and so on where a run was resumed."""
        return self._class("RotaryEmbedding")(self._config).to(self._device)

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        """Input of the first layer, (rows, tokens, hidden); `table` is (vocabulary, hidden)."""
        hidden = nn.functional.embedding(ids, table)
        return hidden if self.embedding_scale == 1 else hidden * self.embedding_scale

    def embed_grad(self, grad: Tensor) -> Tensor:
        """Gradient of the table's rows, fp32, (tokens, hidden), given that of embed's output."""
        rows = grad.reshape(-1, grad.shape[-1]).float()
        return rows if self.embedding_scale == 1 else rows * self.embedding_scale

    def forward(
        self,
        layout: RecordLayout,
        weights: Weights,
        hidden: Tensor,
        positions: Positions,
        routed: list[Routed] | None = None,
    ) -> Tensor:
        """Output of the layer `layout` for `hidden`, shape (rows, tokens, hidden).

        `weights` are those of its record, and of the one beside it if there is one. What a router
        made of the tokens is added to `routed`, by a layer that has one.
        """
        kind, call, tap = self._calls[layout.name]
        if self._compiled:
            mark_sizes([*weights.values()], hidden, positions[kind])
        output = call(dict(weights), hidden, *positions[kind])
        if tap is not None:
            found = tap.take()
            if routed is not None:
                routed.append(found)
        return output

    def forward_only(
        self,
        layout: RecordLayout,
        weights: Weights,
        hidden: Tensor,
        positions: Positions,
        routed: list[Routed] | None = None,
    ) -> Tensor:
        """The same output, to the bit, with nothing saved for a backward pass.

        A compiled layer is one callable for forward and recompute: compiled without gradients it
        would fuse differently, so here its graph is built and dropped.
        """
        if not self._compiled:
            with torch.no_grad():
                return self.forward(layout, weights, hidden, positions, routed)
        with torch.enable_grad():
            inputs = own_version(hidden).requires_grad_()
            leaves = self.leaves(layout, weights)
            return self.forward(layout, leaves, inputs, positions, routed).detach()

    def leaves(self, layout: RecordLayout, weights: Weights) -> Weights:
        """The weights of a layer as they are given to autograd: leaves where they are trained."""
        trained = self._trained[layout.name]
        return {
            name: own_version(weight).requires_grad_(name in trained)
            for name, weight in weights.items()
        }

    def norm(self, weight: Tensor, hidden: Tensor) -> Tensor:
        """The model's final norm, applied to the last dimension."""
        output = functional_call(self._norm, {"weight": weight}, (hidden,))
        assert isinstance(output, Tensor)
        return output


def _stretches(rotary: Any) -> bool:
    """Whether what a rotary module makes of a place depends on the length of the row."""
    found = rotary.rope_type  # one, or one for each kind of layer
    return any(
        kind in _STRETCHED for kind in (found.values() if isinstance(found, dict) else [found])
    )


def _join(parts: Sequence[Tensor], num_tokens: int, packed: bool) -> Tensor:
    """Pieces of (1, tokens, head) behind each other, or one below the other and as wide as all."""
    if packed:
        return torch.cat(list(parts), dim=1)
    return torch.cat([nn.functional.pad(p, (0, 0, 0, num_tokens - p.shape[1])) for p in parts])


def _frozen(module: nn.Module) -> nn.Module:
    """Nothing of the module itself is trained: its weights are given to each call."""
    return module.requires_grad_(False).eval()


def own_version(view: Tensor) -> Tensor:
    """The same memory with a version counter of its own, detached.

    Views of the slots share one counter, so a copy into another slot would make autograd believe
    that these weights had changed. The ring guarantees that they do not.
    """
    return view.data
