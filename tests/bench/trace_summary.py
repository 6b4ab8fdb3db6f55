"""Where the time of a traced step went: by kind of kernel, by what the step was doing, and idle.

Reads the events of a Chrome trace as torch.profiler writes it. On a CPU there are no kernels:
the outermost operators stand in for them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VISIT = "visit:"  # annotations of what the step is doing
STEP = "step"

# The first pattern that is found in a kernel's name names its kind.
KINDS: tuple[tuple[str, str], ...] = (
    ("optimizer", r"adamw"),
    ("rounding", r"_round|round_with"),
    ("attention", r"flash|fmha|sdpa|attention|flex"),
    ("gemm", r"gemm|nvjet|cutlass|xmma|cublas|splitk|::(mm|addmm|bmm|matmul|linear)$"),
    ("copy up", r"memcpy htod"),
    ("copy down", r"memcpy dtoh"),
    ("copy on the device", r"memcpy|memset|::(copy_|fill_|zero_)$"),
    ("compiled elementwise", r"triton|compiledfunction|inductor"),
)
OTHER = "elementwise"
LINKS = ("copy up", "copy down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that ran, in milliseconds from the start of the trace; `lane` is its stream."""

    name: str
    start: float
    end: float
    lane: str

    @property
    def length(self) -> float:
        """Milliseconds."""
        return self.end - self.start


def summarise(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds of the step by kind of kernel on the compute stream, by phase, and idle.

    `idle` is when the compute stream has nothing; of it, `idle_while_copying` has a copy over the
    link under way. ValueError without a span named "step".
    """
    listed = list(events)
    step = _step(listed)
    kernels = [_clip(one, step) for one in _kernels(listed) if _overlaps(one, step)]
    marks = [one for one in _marks(listed) if _overlaps(one, step)]
    lane = _compute_lane(kernels)
    busy = sorted((k for k in kernels if k.lane == lane), key=lambda k: k.start)
    by_kind: defaultdict[str, float] = defaultdict(float)
    by_phase: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel in busy:
        by_kind[kind_of(kernel.name)] += kernel.length
        by_phase[_phase(kernel, marks)][kind_of(kernel.name)] += kernel.length
    gaps = _gaps(busy, step)
    copies = [k for k in kernels if kind_of(k.name) in LINKS and k.lane != lane]
    return {
        "step_ms": step.length,
        "busy_ms": step.length - sum(gap.length for gap in gaps),
        "by_kind_ms": _largest(by_kind),
        "by_phase_ms": {phase: _largest(kinds) for phase, kinds in by_phase.items()},
        "idle_ms": sum(gap.length for gap in gaps),
        "idle_while_copying_ms": sum(_covered(gap, copies) for gap in gaps),
        "idle_by_place_ms": _idle_by_place(gaps, busy, marks),
        "links_ms": {
            kind: sum(k.length for k in copies if kind_of(k.name) == kind) for kind in LINKS
        },
        "longest_kernels_ms": _longest(busy),
    }


def above_limit(summary: dict[str, Any], limit_ms: float) -> dict[str, float]:
    """Where each millisecond above the limit goes; the values add up to what is above it.

    The limit is what the model's matrix products take at the measured peak, so what products take
    longer than that counts here (recomputing and slower shapes), and all that is no product.
    """
    kinds = dict(summary["by_kind_ms"])
    found = {"matrix products above the limit": kinds.pop("gemm", 0.0) - limit_ms, **kinds}
    copying = summary["idle_while_copying_ms"]
    found["idle while copying"] = copying
    found["idle"] = summary["idle_ms"] - copying
    # Kernels of one stream may overlap by a little; what was counted twice is taken off here.
    found["counted twice"] = summary["step_ms"] - limit_ms - sum(found.values())
    return found


def kind_of(name: str) -> str:
    """The kind of a kernel, by its name."""
    lowered = name.lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, lowered)), OTHER)


def _span(event: dict[str, Any]) -> Span:
    start = float(event["ts"]) / 1000
    lane = event.get("args", {}).get("stream", event.get("tid"))
    return Span(
        name=event["name"], start=start, end=start + float(event["dur"]) / 1000, lane=str(lane)
    )


def _of(events: Iterable[dict[str, Any]], *categories: str) -> list[Span]:
    return [_span(e) for e in events if e.get("cat") in categories and "dur" in e]


def _step(events: Sequence[dict[str, Any]]) -> Span:
    found = [span for span in _of(events, "user_annotation") if span.name == STEP]
    if not found:
        raise ValueError("the trace has no span named 'step'")
    return found[0]


def _kernels(events: Sequence[dict[str, Any]]) -> list[Span]:
    kernels = _of(events, "kernel", "gpu_memcpy", "gpu_memset")
    return kernels or _outermost(_of(events, "cpu_op"))


def _marks(events: Sequence[dict[str, Any]]) -> list[Span]:
    """What the step was doing, as the device saw it, or else the thread that computes."""
    for category in ("gpu_user_annotation", "user_annotation"):
        found = [span for span in _of(events, category) if span.name.startswith(VISIT)]
        if found:
            return found
    return []


def _outermost(spans: Sequence[Span]) -> list[Span]:
    kept: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.lane, one.start, -one.end)):
        last = kept[-1] if kept else None
        if last is None or last.lane != span.lane or span.start >= last.end:
            kept.append(span)
    return kept


def _overlaps(span: Span, other: Span) -> bool:
    return span.start < other.end and span.end > other.start


def _clip(span: Span, to: Span) -> Span:
    return Span(
        name=span.name,
        start=max(span.start, to.start),
        end=min(span.end, to.end),
        lane=span.lane,
    )


def _compute_lane(kernels: Sequence[Span]) -> str:
    busy: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kind_of(kernel.name) not in LINKS:
            busy[kernel.lane] += kernel.length
    return next(iter(_largest(busy)), "")


def _phase(kernel: Span, marks: Sequence[Span]) -> str:
    """What the step was doing in the middle of a kernel."""
    middle = (kernel.start + kernel.end) / 2
    for mark in marks:
        if mark.start <= middle < mark.end:
            return mark.name.removeprefix(VISIT)
    return "between"


def _gaps(busy: Sequence[Span], step: Span) -> list[Span]:
    """When nothing of `busy`, by start, runs within the step."""
    gaps = []
    reached = step.start
    for kernel in busy:
        if kernel.start > reached:
            gaps.append(Span(name="idle", start=reached, end=kernel.start, lane=kernel.lane))
        reached = max(reached, kernel.end)
    if reached < step.end:
        gaps.append(Span(name="idle", start=reached, end=step.end, lane=""))
    return gaps


def _covered(gap: Span, spans: Sequence[Span]) -> float:
    """Milliseconds of the gap in which one of the spans runs."""
    inside = sorted((_clip(s, gap) for s in spans if _overlaps(s, gap)), key=lambda s: s.start)
    total, reached = 0.0, gap.start
    for span in inside:
        total += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return total


def _idle_by_place(
    gaps: Sequence[Span], busy: Sequence[Span], marks: Sequence[Span]
) -> dict[str, float]:
    """Idle time by what came before and after it."""
    ends = {kernel.end: kernel for kernel in busy}
    starts = {kernel.start: kernel for kernel in busy}
    places: dict[str, float] = defaultdict(float)
    for gap in gaps:
        before, after = ends.get(gap.start), starts.get(gap.end)
        left = _phase(before, marks) if before else "begin"
        right = _phase(after, marks) if after else "end"
        places[f"{left} -> {right}"] += gap.length
    return _largest(places, 8)


def _largest(values: Mapping[str, float], count: int | None = None) -> dict[str, float]:
    """The entries by value, the largest first."""
    return dict(sorted(values.items(), key=lambda item: -item[1])[:count])


def _longest(busy: Sequence[Span]) -> list[dict[str, Any]]:
    """The kernels that took longest in sum, with how often they ran."""
    total: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for kernel in busy:
        total[kernel.name] += kernel.length
        count[kernel.name] += 1
    return [
        {"name": name[:120], "ms": ms, "count": count[name], "kind": kind_of(name)}
        for name, ms in _largest(total, 20).items()
    ]
