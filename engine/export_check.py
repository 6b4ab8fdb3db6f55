"""An export is read back from its files and must give the logits of the state it was made from.

Both are computed in float32, one layer at a time, from what is in the store and from what is in
the files. What keeping the weights in the export's dtype does to the logits by itself is computed
too: what differs from that, nothing explains.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from headrace.storage import file_sha256

from .errors import ExportMismatch
from .export import ReadPieces, write_json
from .export_forms import ExportForm
from .export_reader import open_export
from .export_view import exported_view
from .model import ModelSpec
from .streamed import View, streamed_logits

REPORT = "export_report.json"
NUM_PROMPTS = 3
PROMPT_TOKENS = 32
NOISE = 1e-5  # of the largest logit: what the order of sums in float32 may do
# Of what rounding does: two ways to merge an adapter differ in the last bit of float32, so one
# weight in a hundred thousand may be rounded to its other neighbour.
OTHER_NEIGHBOURS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Logits of the files beside those of the state, over all positions of the prompts.

    `max_abs_diff`: from the state as it was trained; `rounding_diff`: what of that the export's
    dtype does by itself; `unexplained_diff`: from the state rounded so, with `tolerance` allowed.
    """

    num_prompts: int
    num_positions: int
    max_abs_diff: float
    rounding_diff: float
    unexplained_diff: float
    tolerance: float
    largest_logit: float
    argmax_agreement: float
    seconds: float

    @property
    def matches(self) -> bool:
        """Whether the files hold what was trained; never when a logit is not finite."""
        return self.unexplained_diff <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values, and the verdict."""
        return {**asdict(self), "matches": self.matches}


def compare(
    export_dir: Path,
    form: ExportForm,
    spec: ModelSpec,
    read_pieces: ReadPieces,
    prompts: Sequence[Tensor],
    *,
    device: torch.device,
) -> Comparison:
    """Compute the prompts from the state and from the export's files.

    `read_pieces` gives the records of `spec` as they are trained, and frozen ones as the model's
    own files have them. Raises ModelError for files that hold no such model.
    """
    started = perf_counter()
    kept, by_rounding = streamed_logits(
        spec, read_pieces, prompts, device=device,
        views=[View(spec=spec), exported_view(form, spec)],
    )  # fmt: skip
    rounding = _largest_difference(kept, by_rounding)
    with open_export(export_dir, form, spec) as (found, read):
        (got,) = streamed_logits(found, read, prompts, device=device, views=[View(spec=found)])
    largest = max(float(one.abs().max()) for one in kept)
    same = sum(int((a.argmax(1) == b.argmax(1)).sum()) for a, b in zip(kept, got, strict=True))
    positions = sum(len(one) for one in prompts)
    return Comparison(
        num_prompts=len(prompts),
        num_positions=positions,
        max_abs_diff=_largest_difference(kept, got),
        rounding_diff=rounding,
        unexplained_diff=_largest_difference(by_rounding, got),
        tolerance=OTHER_NEIGHBOURS * rounding + NOISE * max(1.0, largest),
        largest_logit=largest,
        argmax_agreement=same / positions,
        seconds=perf_counter() - started,
    )


def _largest_difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """NaN where one of them has a NaN."""
    found = torch.stack([(a - b).abs().max() for a, b in zip(one, other, strict=True)])
    return float(found.max())


def write_report(
    export_dir: Path, form: ExportForm, comparison: Comparison | None, *, step: int | None
) -> dict[str, Any]:
    """Put the report beside the export's files, which it lists, and return it.

    Without a comparison it says that none was made; without a step, that it is of no run.
    """
    report = {
        "format": form.format,
        "dtype": form.dtype,
        "step": step,
        "check": None if comparison is None else comparison.to_dict(),
        "files": [_file(path) for path in sorted(export_dir.iterdir()) if path.name != REPORT],
    }
    (export_dir / REPORT).unlink(missing_ok=True)  # of a run that died before it said so
    write_json(export_dir / REPORT, report)
    return report


def _file(path: Path) -> dict[str, Any]:
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": file_sha256(path)}


def mismatch(export_dir: Path, form: ExportForm, found: Comparison, *, hint: str) -> ExportMismatch:
    """The error of an export whose files give other logits; `hint` says what to do."""
    return ExportMismatch(
        f"the {form.format} export in {export_dir} gives other logits than what it is of: over "
        f"{found.num_positions} positions they differ by up to {found.max_abs_diff:.4g}, of which "
        f"rounding to {form.dtype} does not explain {found.unexplained_diff:.4g}, where "
        f"{found.tolerance:.4g} is allowed; the same token is likeliest at "
        f"{100 * found.argmax_agreement:.1f} % of them. {hint}"
    )


def put_aside(export_dir: Path, target: Path) -> Path:
    """Keep what does not match for whoever looks into it, beside the `target` that it was to be,
    whose place is free for another try; where it is."""
    aside = target.with_name(f"{target.name}.mismatch")
    shutil.rmtree(aside, ignore_errors=True)
    return export_dir.rename(aside)
