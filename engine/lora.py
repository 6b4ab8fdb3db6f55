"""Low-rank adapters: which projections get one, and the tensors of each. No torch.

Hu et al., "LoRA" (2021): a frozen weight W of shape (out, in) acts as W + scaling * B A, with A
(rank, in) and B (out, rank) trained. Kalajdzievski, "rsLoRA" (2023): scaling alpha / sqrt(rank)
instead of alpha / rank.
"""

import re
from collections.abc import Sequence

from .errors import BadSetting
from .model import EXPERTS, LAYERS, ROUTER, Lora, ModelSpec, RecordLayout
from .name_pattern import fault_of

ALL_LINEAR = "all-linear"
NAME = re.compile(r"[\w.-]*")  # as an expression it is quick, too
DOWN, UP = "lora_A.weight", "lora_B.weight"  # A and B, by peft's names

Shape = tuple[int, ...]


def chooses(lora: Lora, module: str) -> bool:
    """Whether a projection gets an adapter, by its name in the whole model."""
    if any(module.endswith(f".{target}") for target in lora.targets):
        return True
    if len(lora.targets) > 1:
        return False
    (target,) = lora.targets
    return target == ALL_LINEAR or re.fullmatch(target, module) is not None


def adapted(lora: Lora, layer: RecordLayout) -> list[str]:
    """Names within the layer of the projections that get an adapter, in the layer's order."""
    return [
        module.removeprefix(LAYERS).split(".", 1)[1]
        for module in projections(layer)
        if chooses(lora, module)
    ]


def projections(layer: RecordLayout) -> list[str]:
    """Names in the whole model of a layer's projections: its matrices, each expert's too, but for
    a router, which no adapter changes."""
    return [
        param.name.removesuffix(".weight")
        for param in layer.params
        if len(param.full_shape) == 2
        and param.name.endswith(".weight")
        and not param.name.endswith(ROUTER)
    ]


def adapter_tensors(lora: Lora, layer: RecordLayout) -> list[tuple[str, Shape]]:
    """Names in the whole model and shapes of a layer's adapters: A and B of each projection."""
    shapes = {param.name: param.full_shape for param in layer.params}
    tensors: list[tuple[str, Shape]] = []
    for module in projections(layer):
        if chooses(lora, module):
            rows, columns = shapes[f"{module}.weight"]
            tensors += [(f"{module}.{DOWN}", (lora.rank, columns))]
            tensors += [(f"{module}.{UP}", (rows, lora.rank))]
    return tensors


def check_targets(lora: Lora, layers: Sequence[RecordLayout]) -> None:
    """BadSetting when a target is no valid expression, takes too long, or chooses nothing."""
    modules = [module for layer in layers for module in projections(layer)]
    if len(lora.targets) > 1 and ALL_LINEAR in lora.targets:
        raise _bad(f"{ALL_LINEAR!r} stands alone, or not at all")
    for target in lora.targets:
        alone = len(lora.targets) == 1  # else it is a name, and no expression
        if alone and not NAME.fullmatch(target) and (fault := fault_of(target, modules)):
            raise _bad(f"{target!r:.80} {fault}")
        ends = f".{target}"
        if not any(chooses(lora, m) if alone else m.endswith(ends) for m in modules):
            known = sorted({module.rsplit(".", 1)[-1] for module in modules})
            raise _bad(
                f"{target!r:.80} is the name of no projection of this model; wanted {ALL_LINEAR}, "
                f"one regular expression, or some of {', '.join(known)}"
            )


def check_loadable(lora: Lora, spec: ModelSpec) -> None:
    """BadSetting for adapters of a mixture that peft cannot load apart from the model.

    transformers keeps a layer's experts in two tensors, gate with up and down, and peft goes by
    last parts of names: it adapts all experts of all layers, gate and up together, and takes the
    MLP of a layer without experts for experts.
    """
    if spec.experts is None:
        return
    modules = [module for layer in spec.of_kind("layer") for module in projections(layer)]
    chosen = [module for module in modules if chooses(lora, module)]
    names = {_last(module) for module in chosen}
    of_experts = {_last(module) for module in chosen if EXPERTS in module}
    gate, up, _ = spec.experts.projections
    if any(_last(m) in spec.experts.projections for m in chosen if EXPERTS not in m):
        why = "some layers of this model have no experts, and their MLPs would be taken for experts"
    elif len(of_experts & {gate, up}) == 1:
        why = f"{gate} and {up} of an expert are one tensor: adapt both, or neither"
    elif of_experts and chosen != [module for module in modules if _last(module) in names]:
        why = "where experts are adapted, so is every projection of the same name"
    else:
        return
    raise _bad(
        f"peft could not load these: {why}; name others (such as "
        f"q_proj, k_proj, v_proj and o_proj), or have the merged model exported"
    )


def _bad(why: str) -> BadSetting:
    return BadSetting(f"target modules of adapters: {why}", setting="lora_targets")


def _last(module: str) -> str:
    return module.rsplit(".", 1)[-1]
