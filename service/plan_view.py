"""A job's plan in words, each line with where its measured twin is found. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .formats import pick, shown

LINKS = {
    "nvme_read": "Drive reads",
    "nvme_write": "Drive writes",
    "h2d": "Copies up",
    "d2h": "Copies down",
}

Row = dict[str, Any]


def plan_groups(plan: Mapping[str, Any], *, on_cpu: bool) -> list[tuple[str, list[Row]]]:
    """What was planned, by title. `path` and `form` are of what is measured, None: nothing is."""
    groups = [
        ("Time", list(_seconds(plan))),
        ("A step moves", list(_links(plan))),
        ("Room", [*_memory(plan, on_cpu), *_drives(plan)]),
    ]
    return [(title, rows) for title, rows in groups if rows]


def span(low: float, high: float) -> str:
    """Seconds from one number to another, with the unit once where it is the same."""
    first, last = shown(low, "duration"), shown(high, "duration")
    number, unit = first.rsplit(" ", 1)
    one_unit = " " not in number and last.endswith(f" {unit}") and last.count(" ") == 1
    return f"{number if one_unit else first} – {last}"


def homes(plan: Mapping[str, Any]) -> dict[str, str]:
    """How many records live in each tier between their visits, in words."""
    tiers: Sequence[str] = plan.get("tiers") or ()
    return {
        tier: f"{tiers.count(tier)} of {len(tiers)} records live here"
        for tier in ("nvme", "host", "device")
        if tiers
    }


def advice(plan: Mapping[str, Any]) -> list[str]:
    """What would make the job faster, the best first."""
    return [change["text"] for change in plan.get("changes") or ()]


def _seconds(plan: Mapping[str, Any]) -> Iterator[Row]:
    """Any part may be missing: plans stay in the journal as they were made, by any version."""
    step = pick(plan, "forecast.step_seconds") or {}
    if "expected" in step:
        told = shown(step["expected"], "duration")
        yield _row("A step takes", told, "engine.step_time_s", "duration")
    if "low" in step and "high" in step:
        yield _row("Between", span(step["low"], step["high"]), None, "")
    for phase in pick(plan, "forecast.step.phases") or ():
        name, told = str(phase["phase"]), shown(phase["seconds"], "duration")
        yield _row(name.capitalize(), told, f"report.{name}_seconds", "duration")
    if (rate := pick(plan, "forecast.tokens_per_second")) is not None:
        told = shown(rate, "per_second")
        yield _row("Tokens a second", told, "engine.tokens_per_s", "per_second")
    if "expected" in step and (total := plan.get("total_steps")):
        yield _row("All steps", shown(total * step["expected"], "duration"), None, "")


def _links(plan: Mapping[str, Any]) -> Iterator[Row]:
    moved = pick(plan, "forecast.step.link_bytes") or {}
    written = pick(plan, "forecast.wear.step_bytes")  # with what commits write
    for link, name in LINKS.items():
        if link in moved:
            planned = written if link == "nvme_write" and written is not None else moved[link]
            yield _row(name, shown(planned, "size"), f"report.links.{link}.payload_bytes", "size")


def _memory(plan: Mapping[str, Any], on_cpu: bool) -> Iterator[Row]:
    device, host = plan.get("total_device_bytes"), plan.get("total_host_bytes")
    if device is None or host is None:
        return
    if on_cpu:  # one memory is both tiers
        yield _row("Memory", shown(device + host, "size"), "tier.host_bytes", "some")
        return
    yield _row("Device memory", shown(device, "size"), "report.device_peak_bytes", "some")
    yield _row("Host memory", shown(host, "size"), "tier.host_bytes", "some")


def _drives(plan: Mapping[str, Any]) -> Iterator[Row]:
    if "volume_bytes" in plan:
        yield _row("Room on the drives", shown(plan["volume_bytes"], "size"), None, "")
    if (share := pick(plan, "forecast.wear.share")) is not None:
        yield _row("Of the drives' rated life", f"{100 * share:.3g} %", None, "")


def _row(name: str, planned: str, path: str | None, form: str) -> Row:
    return {"name": name, "planned": planned, "path": path, "form": form}
