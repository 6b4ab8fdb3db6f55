"""What a run trains of a model: all of it, part of it, or adapters beside it. Pure, no torch."""

from dataclasses import replace
from fnmatch import fnmatchcase

from .config import TrainConfig
from .decoder import pack
from .errors import BadSetting
from .lora import adapter_tensors, check_loadable, check_targets
from .model import BaseFormat, Lora, ModelSpec, ParamSpec, RecordLayout


def method_spec(spec: ModelSpec, config: TrainConfig) -> ModelSpec:
    """The spec of a model as read, with what the run's method freezes and what it adds.

    Frozen records hold weights alone. Raises BadSetting for a setting that is in vain, and when
    nothing would be trained.
    """
    spec = _with_balance(spec, config.router_aux_loss_coef)
    base = _base_format(spec, config)
    if config.method == "lora":
        return _with_adapters(spec, base, config)
    return _frozen(spec, base, config.freeze) if config.freeze else spec


def _with_balance(spec: ModelSpec, coefficient: float | None) -> ModelSpec:
    """The spec with the run's own coefficient of the loss that balances experts, if it has one."""
    if coefficient is None:
        return spec
    if spec.experts is None:
        if coefficient == 0:
            return spec
        raise BadSetting(
            f"router_aux_loss_coef is {coefficient}, and a model of family {spec.family} has no "
            f"experts to balance: leave it out",
            setting="router_aux_loss_coef",
        )
    return replace(spec, experts=replace(spec.experts, balance=coefficient))


def without_adapters(spec: ModelSpec) -> ModelSpec:
    """The parameters of the model itself, whatever is trained: what its files hold."""
    if spec.lora is None:
        return spec
    return replace(spec, records=tuple(r for r in spec.records if r.kind != "beside"), lora=None)


def _base_format(spec: ModelSpec, config: TrainConfig) -> BaseFormat:
    """Frozen weights are kept as exactly as they are computed with, and no more so; or coded."""
    if config.frozen_format != "auto":
        return config.frozen_format
    enough = spec.is_bfloat16 or config.compute_dtype == "bfloat16"
    return "bfloat16" if enough else "float32"


def _with_adapters(spec: ModelSpec, base: BaseFormat, config: TrainConfig) -> ModelSpec:
    lora = Lora(
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        rslora=config.lora_rslora,
        targets=config.lora_targets,
    )
    layers = spec.of_kind("layer")
    check_targets(lora, layers)
    if config.lora_export == "adapter":
        check_loadable(lora, spec)
    frozen = [replace(record, base=base) for record in spec.records]
    adapters = []
    for layer in layers:
        if tensors := adapter_tensors(lora, layer):
            params, num_elements = pack(tensors)
            adapters.append(_beside(layer, "lora", params, num_elements))
    return replace(spec, records=(*frozen, *adapters), lora=lora)


def _beside(
    layer: RecordLayout, suffix: str, params: tuple[ParamSpec, ...], num_elements: int
) -> RecordLayout:
    return RecordLayout(
        name=f"{layer.name}.{suffix}",
        kind="beside",
        params=params,
        num_elements=num_elements,
        layer=layer.name,
    )


def _frozen(spec: ModelSpec, base: BaseFormat, patterns: tuple[str, ...]) -> ModelSpec:
    """Whole records are frozen where they can be; a layer of which a part is trained is split."""
    names = [param.name for record in spec.records for param in record.params]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadSetting(
                f"freeze: {pattern!r} is the name of no parameter; names are such as "
                f"{names[0]} or {names[-1]}, and * stands for any part of one",
                setting="freeze",
            )
    records: list[RecordLayout] = []
    beside: list[RecordLayout] = []
    for record in spec.records:
        stays = [any(fnmatchcase(p.name, pattern) for pattern in patterns) for p in record.params]
        if not any(stays):
            records.append(record)
        elif all(stays):
            records.append(replace(record, base=base))
        else:
            halves = [
                pack((p.name, p.shape) for p, stay in zip(record.params, stays, strict=True)
                     if stay is wanted)
                for wanted in (True, False)
            ]  # fmt: skip
            (kept, kept_elements), (trained, trained_elements) = halves
            records.append(replace(record, base=base, params=kept, num_elements=kept_elements))
            beside.append(_beside(record, "trained", trained, trained_elements))
    found = replace(spec, records=(*records, *beside))
    if not found.trained:
        message = f"freeze: {', '.join(patterns)} leaves nothing to train"
        raise BadSetting(message, setting="freeze")
    return found
