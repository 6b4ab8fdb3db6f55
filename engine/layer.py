"""Forward and backward of one resident layer: transformers' own module, bound to slot views."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

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
from .places import Places, Positions
from .recall import Recall

Weights = Mapping[str, Tensor]


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


class _Calls(NamedTuple):
    """What computes a layer: its kind, a function as jobs compile it and as it is written, and the
    tap of its router, if it has one."""

    kind: str
    compiled: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    tap: RouterTap | None


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
        self._compiled = compile != "off"
        if self._compiled:
            start_compiler()
        self.places = Places(
            new_rotary=lambda: self._class("RotaryEmbedding")(self._config),
            kinds=dict.fromkeys(kind.name for kind in spec.layer_kinds),
            by_kind=self._family.rope_per_kind,
            device=device,
            dtype=dtype,
        )
        self._calls: dict[str, _Calls] = {}
        self._trained = {
            layout.name: trained_names(spec, layout) for layout in spec.of_kind("layer")
        }
        built: dict[tuple[str, ...], _Calls] = {}
        for i, (layout, kind) in enumerate(
            zip(spec.of_kind("layer"), spec.layer_kinds, strict=True)
        ):
            names = adapted(spec.lora, layout) if spec.lora else []
            key = (kind.name, str(len(layout.params)), *names)
            if key not in built:
                built[key] = self._build(i, compile, names)
            self._calls[layout.name] = built[key]
        norm = self._class("RMSNorm")
        with torch.device("meta"):
            self._norm = _frozen(norm(spec.hidden_size, eps=self._config.rms_norm_eps))
        self.logit_softcap = spec.logit_softcap
        # The scale itself is of the compute dtype: 55.5 rather than 55.4256 in bfloat16.
        self.embedding_scale = float(torch.tensor(spec.embedding_scale).to(dtype))

    def _class(self, name: str) -> Any:
        return getattr(self._classes, self._family.prefix + name)

    def _build(self, index: int, compile: Compile, names: Sequence[str]) -> "_Calls":
        """What computes a layer of the kind that the layer with this index has, with adapters on
        the projections of these names."""
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
            recall: Recall | None = None,
        ) -> Tensor:
            # What a token sees is up to attention.py: no mask is made here.
            arguments: dict[str, Any] = {
                "position_embeddings": (cos, sin),
                "attention_mask": None,
                "documents": documents,
                "recall": recall,
            }
            output = functional_call(layer, weights, (hidden,), arguments)
            assert isinstance(output, Tensor)
            return output

        kind, compiled = self._spec.layer_kinds[index].name, apply
        if self._compiled and not tap:  # which experts a token meets, no graph can know
            compiled = torch.compile(apply, dynamic=compile == "dynamic")
        return _Calls(kind, compiled, apply, tap)

    def positions(self, num_tokens: int, lengths: Tensor, *, packed: bool) -> Positions:
        """Positions of whole rows, or of packed documents (`Places.of`)."""
        return self.places.of(num_tokens, lengths, packed=packed)

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
        kind, call, _, tap = self._calls[layout.name]
        if self._compiled:
            mark_sizes([*weights.values()], hidden, positions[kind])
        output = call(dict(weights), hidden, *positions[kind])
        if tap is not None:
            found = tap.take()
            if routed is not None:
                routed.append(found)
        return output

    @torch.no_grad()
    def forward_next(
        self,
        layout: RecordLayout,
        weights: Weights,
        hidden: Tensor,
        positions: Positions,
        recall: Recall,
    ) -> Tensor:
        """The same for the next tokens of rows that the layer remembers; never compiled."""
        kind, _, call, tap = self._calls[layout.name]
        output = call(dict(weights), hidden, *positions[kind], recall)
        if tap is not None:
            tap.take()
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


def _frozen(module: nn.Module) -> nn.Module:
    """Nothing of the module itself is trained: its weights are given to each call."""
    return module.requires_grad_(False).eval()


def own_version(view: Tensor) -> Tensor:
    """The same memory with a version counter of its own, detached.

    Views of the slots share one counter, so a copy into another slot would make autograd believe
    that these weights had changed. The ring guarantees that they do not.
    """
    return view.data
