"""A plan for people: what was decided, what it takes, what it waits for, what would help."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .output import console, human_bytes, human_count, human_seconds, print_table

_WHENCE = {
    "measured": "measured {measured_at}",
    "described": "planned from a description, not measured",
    "default": "not calibrated: the rates of a usual box; `headrace calibrate` measures this one",
}
_HOMES = {"device": "on the device", "host": "in host memory", "nvme": "on NVMe"}


def show_plan(report: dict[str, Any]) -> None:
    """Print a plan: its decisions and predictions, the condition by pass, the changes."""
    plan = report["plan"]
    forecast = plan["forecast"]
    print_table([], _facts(report, plan, forecast), empty="")
    out = console()
    out.print()
    rows = [_condition(one) for one in forecast["conditions"]]
    print_table(
        ["pass", "layers", "state", "compute", "transfer", "by", "slack", "holds from"], rows,
        empty="no layer is streamed",
    )  # fmt: skip
    if plan["changes"]:
        out.print()
        out.print("What would help:")
        for change in plan["changes"]:
            out.print(f"  {change['text']}", markup=False)
    for warning in report.get("warnings", []):
        out.print(f"warning: {warning}", markup=False)


def _placed(tiers: Sequence[str]) -> str:
    """How many are where, the nearest first."""
    counts = Counter(tiers)
    return ", ".join(f"{counts[tier]} {home}" for tier, home in _HOMES.items() if counts[tier])


def _facts(
    report: dict[str, Any], plan: dict[str, Any], forecast: dict[str, Any]
) -> list[list[str]]:
    step, commit = forecast["step_seconds"], forecast["commit"]
    box = forecast["box"] or "this box"
    whence = _WHENCE[forecast["origin"]].format(measured_at=forecast["measured_at"])
    if forecast["doubts"]:
        whence += f"; {'; '.join(forecast['doubts'])}; `headrace calibrate` measures again"
    model = report["model"]
    if isinstance(model, dict):
        passed = model["num_passed_params"]
        some = f", {passed / 1e9:.3g} B of them for a token" * (passed < model["num_params"])
        model = f"{model['family']}, {model['num_params'] / 1e9:.3g} B parameters{some}"
    moved = forecast["step"]["link_bytes"]
    links = ", ".join(f"{name} {human_bytes(size)}" for name, size in moved.items() if size)
    wear = forecast["wear"]
    facts = [
        ["model", str(model)],
        ["box", f"{box} ({whence})"],
        ["strategy", _strategy(plan["strategy"])],
        ["state format", _formats(plan)],
        ["state of records", _placed(plan["tiers"])],
        ["layers kept, not recomputed", str(len(plan["keep_layers"]))],
        ["inputs of layers", _placed(plan["activation_tiers"])],
        ["slots", f"{plan['num_slots']} of {human_bytes(plan['slot_bytes'])}"],
        ["device", human_bytes(plan["total_device_bytes"])],
        ["host", human_bytes(plan["total_host_bytes"])],
        ["volumes", human_bytes(plan["volume_bytes"])],
        ["update", f"{plan['clip_way']} ({forecast['way']} predicted), {len(plan['on_host'])} "
                   "records by the processor"],
        ["step", f"{_seconds(step['expected'])} ({_seconds(step['low'])} to "
                 f"{_seconds(step['high'])}), {forecast['tokens_per_step']} tokens"],
        ["rate", f"{forecast['tokens_per_second']:.4g} tokens/s with commits"],
        ["moved a step", links or "nothing"],
        ["waits for", forecast["sentence"]],
        ["commit", f"{human_bytes(commit['bytes'])}, {_seconds(commit['seconds'])}"],
        ["checkpoint", f"{human_bytes(forecast['checkpoint']['bytes'])}, "
                       f"{_seconds(forecast['checkpoint']['seconds'])}"],
        ["written", _wear(wear)],
    ]  # fmt: skip
    if before := forecast["reference_seconds"]:
        facts.append(["reference", f"{_seconds(before)} forward over all rows before step 1"])
    if texts := forecast["sample_seconds"]:
        facts.append(["samples", f"{_seconds(texts)} at each evaluation: all weights stream by "
                                 "once for each token"])  # fmt: skip
    if job := forecast["job_seconds"]:
        clock = [human_seconds(job[name]) for name in ("expected", "low", "high")]
        facts.append(["job", f"{forecast['num_steps']} steps, {clock[0]} ({clock[1]} to "
                             f"{clock[2]}) with import and export"])  # fmt: skip
    if money := forecast["money"]:
        facts.append(["cost", _money(money)])
    return facts


def _formats(plan: dict[str, Any]) -> str:
    """The state's bytes as it is held, and as other formats would hold it."""
    sizes = {name: human_bytes(size) for name, size in plan["state_bytes"].items()}
    own = plan["state_format"]
    others = ", ".join(f"{name} {size}" for name, size in sizes.items() if name != own)
    return f"{own}, {sizes[own]} (as {others})"


def _strategy(name: str) -> str:
    """The strategy and its rule."""
    from headrace.engine import STRATEGIES

    rules: dict[str, str] = {known: one.rule for known, one in STRATEGIES.items()}
    return f"{name}: {rules[name]}" if name in rules else name


def _wear(wear: dict[str, Any]) -> str:
    text = f"{human_bytes(wear['step_bytes'])} a step"
    if wear["job_bytes"] is not None:
        text += f", {human_bytes(wear['job_bytes'])} in all"
    if wear["share"] is not None:
        text += f" = {100 * wear['share']:.3g} % of the drives' rated life"
    elif wear["rated_bytes"] is None:
        text += "; the drives' rated life is not known"
    if wear["life_steps"] is not None:
        text += f"; new drives last {human_count(wear['life_steps'])} steps"
    return text


def _money(money: dict[str, Any]) -> str:
    total = f"{money['price_per_million_tokens']:.4g} per million tokens"
    if money["job_price"] is not None:
        total += f", {money['job_price']:.4g} in all"
    return (
        f"{total}; {money['devices_in_memory']} such devices would hold the job in their memory, "
        f"and be cheaper above {money['break_even_tokens_per_second']:.4g} tokens/s together"
    )


def _condition(one: dict[str, Any]) -> list[str]:
    needed = one["tokens_needed"]
    name = f"{one['phase']}, recomputed" if one["recomputed"] else one["phase"]
    return [
        name,
        str(one["num_layers"]),
        _HOMES[one["home"]],
        _seconds(one["compute_seconds"]),
        _seconds(one["transfer_seconds"]),
        one["link"] if one["transfer_seconds"] else "",
        _seconds(one["slack_seconds"]),
        "no number of tokens" if needed is None else f"{needed} tokens" if needed else "always",
    ]


def show_schemes(report: dict[str, Any]) -> None:
    """Print the comparison of schemes on a box."""
    out = console()
    out.print(f"{report['box'] or 'this box'}: {report['num_params'] / 1e9:.3g} B parameters, "
              f"{report['tokens']} tokens a step", markup=False)  # fmt: skip
    rows = [
        [
            one["scheme"],
            f"{one['drive_read']:.3g} / {one['drive_write']:.3g}",
            f"{human_count(one['drive_tokens'])} tokens",
            f"{human_count(one['link_tokens'])} tokens",
            _seconds(one["compute_seconds"]),
            _seconds(one["drive_seconds"]),
            _seconds(one["link_seconds"]),
            human_bytes(one["written_bytes"]),
            human_count(one["life_steps"]) if one["life_steps"] else "",
        ]
        for one in report["schemes"]
    ]
    columns = ["way", "read / written B/param", "drive hidden from", "link from", "compute",
               "drive", "link", "written a step", "life, steps"]  # fmt: skip
    print_table(columns, rows, empty="")


def _seconds(seconds: float) -> str:
    if abs(seconds) >= 120:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if abs(seconds) >= 1 or not seconds else f"{1000 * seconds:.3g} ms"
