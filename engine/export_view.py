"""What the weights of a run become by leaving in a form, and by nothing else."""

from torch import Tensor

from .export_forms import ExportForm
from .export_rounding import BLOCK, rounded
from .lora import DOWN, UP
from .methods import without_adapters
from .model import ROUTER, ModelSpec
from .streamed import Named, View


def exported_view(form: ExportForm, spec: ModelSpec) -> View:
    """Merged where the form is the whole model, and rounded as its files are."""
    if form.format == "adapter":
        return View(spec=spec, change=lambda named: _round_adapters(named, form.dtype))
    return View(
        spec=without_adapters(spec),
        change=lambda named: {
            name: _kept(name, values, form) for name, values in _merged(named, spec).items()
        },
    )


def _round_adapters(named: Named, dtype: str) -> Named:
    return {
        name: rounded(values, dtype) if name.endswith((DOWN, UP)) else values
        for name, values in named.items()
    }


def _merged(named: Named, spec: ModelSpec) -> Named:
    """Adapters added to the weights that they are for."""
    if spec.lora is None:
        return named
    whole = {name: values for name, values in named.items() if not name.endswith((DOWN, UP))}
    for name, down in named.items():
        if name.endswith(DOWN):
            module = name.removesuffix(f".{DOWN}")
            update = named[f"{module}.{UP}"] @ down * spec.lora.scaling
            whole[f"{module}.weight"] = whole[f"{module}.weight"] + update
    return whole


def _kept(name: str, values: Tensor, form: ExportForm) -> Tensor:
    """GGUF files keep vectors and routers exactly, and rows of no whole blocks as float16."""
    if form.format == "gguf" and (values.dim() == 1 or name.endswith(ROUTER)):
        return values
    whole_blocks = form.dtype != "q8_0" or values.shape[-1] % BLOCK == 0
    return rounded(values, form.dtype if whole_blocks else "float16")
