"""The results of `bench.gpu_step` for people: one line a contender, and what was promised."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.gpu_cases import CASES, TABLE, Case

Row = Mapping[str, Any]


def summary(row: Row) -> str:
    """One contender in a line."""
    name = f"{row['case']} {row['who']}"
    if "failed" in row:
        return f"{name}: failed ({row['failed']}) after {row['wall_seconds']} s\n{row['said']}"
    result = row["result"]
    used = result.get("device_used_gib", 0.0)
    line = (
        f"{name}: {result['step_seconds']:.3f} s/step, {result['tflops']:.0f} model TFLOPS, "
        f"{result['tokens_per_second']:.0f} tokens/s, device {result['peak_gib']:.1f} GiB "
        f"(reserved {result['peak_reserved_gib']:.1f}, used {used:.1f}), "
        f"host {result['host_peak_gib']:.1f} GiB; "
        f"{row['wall_seconds']:.0f} s in all"
    )
    if "plan" in result:
        moved = ", ".join(f"{k} {v / 1e9:.1f}" for k, v in result["link_bytes"].items() if v)
        ways = ", ".join(dict.fromkeys(result["ways"]))
        line += f"\n    {ways}; {result['plan']}; GB a step: {moved or 'none'}"
    if "start_seconds" in result:
        line += "\n    " + _written(result)
    if "limit" in result:
        limit = result["limit"]
        line += (
            f"\n    limit {limit['needed_seconds']:.3f} s by what must move (ratio "
            f"{limit['ratio_to_needed']:.2f}), {limit['moved_seconds']:.3f} s by what moved "
            f"({limit['ratio_to_moved']:.2f})"
        )
    return line


def _written(result: Mapping[str, Any]) -> str:
    """What steps and commits wrote on the volumes, and the times around them."""
    steps = len(result["all_step_seconds"])
    each = ", ".join(f"{k} {v / steps / 1e9:.4g}" for k, v in result["written_bytes"].items())
    return (
        f"GB written by a step and its commit: {each}; commit {result['commit_seconds']:.2f} s; "
        f"planned {result['planned_seconds']:.2f} s/step; first step after "
        f"{result['start_seconds']:.0f} s, {result['warm_seconds']:.1f} s long; "
        f"{result['pinned_gib']:.1f} GiB of host memory for copies"
    )


def table(path: Path) -> str:
    """Every contender of every case, the last result of each, and what the case promises."""
    rows: dict[tuple[str, str], Row] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows[row["case"], row["who"]] = row
    lines = []
    for case in [*TABLE, *(name for name in CASES if name not in TABLE)]:
        found = {who: row for (name, who), row in rows.items() if name == case}
        if found:
            lines += [summary(row) for row in found.values()]
            lines += [f"    {line}" for line in promises(case, found)]
    return "\n".join(lines)


def promises(case: str, found: Mapping[str, Row]) -> list[str]:
    """What the case promises of the contenders found, each with what was measured."""
    wanted = CASES[case]
    results = {who: row["result"] for who, row in found.items() if "result" in row}
    own, clipping = results.get("headrace"), results.get("headrace-clipping")
    lines = []
    if own:
        lines += [
            _judge(f"x {peer}", own["tflops"] / results[peer]["tflops"], ratio)
            for peer, ratio in wanted.peers.items()
            if peer in results
        ]
        if wanted.tflops:
            lines.append(_judge("model TFLOPS", own["tflops"], wanted.tflops))
        if wanted.limit_ratio:
            # What went over a drive is what has to: weights that the device keeps are not read.
            ratio = own["limit"]["ratio_to_moved" if wanted.limit == "drive" else "ratio_to_needed"]
            lines.append(_judge(f"of the {wanted.limit} limit", ratio, wanted.limit_ratio))
        if clipping and wanted.clipped_ratio:
            ratio = own["step_seconds"] / clipping["step_seconds"]
            lines.append(_judge("clipping, of not clipping", ratio, wanted.clipped_ratio))
        deterministic = results.get("headrace-deterministic")
        if deterministic:
            cost = deterministic["step_seconds"] / own["step_seconds"] - 1
            lines.append(f"deterministic costs {cost:.1%}")
    if own:
        lines += _within(wanted, own)
    if clipping and wanted.limit == "pcie":
        ratio = limit_of_way(clipping) / clipping["step_seconds"]
        lines.append(_judge("clipping, of the limit of its way", ratio, 0.90))
    return lines


def _within(wanted: Case, own: Mapping[str, Any]) -> list[str]:
    """Whether the memory was enough, and nothing of what is frozen was written by training."""
    lines = []
    limits = {"device": ("device_used_gib", wanted.device_gib),
              "host": ("host_peak_gib", wanted.host_gib)}  # fmt: skip
    for what, (key, limit) in limits.items():
        if limit is not None:
            verdict = "holds" if own[key] <= limit else "MISSED"
            lines.append(f"{verdict}: {what} {own[key]:.2f} GiB (promised at most {limit:g})")
    if own.get("num_trained_params", own.get("num_params")) != own.get("num_params"):
        frozen = own["written_bytes"]["frozen"]
        verdict = "holds" if frozen == 0 else "MISSED"
        lines.append(f"{verdict}: {frozen} bytes of what is frozen written by training")
    return lines


def _judge(what: str, found: float, wanted: float) -> str:
    shown = f"{found:.0f}" if wanted > 10 else f"{found:.2f}"
    return f"{'holds' if found >= wanted else 'MISSED'}: {what} {shown} (promised {wanted:g})"


def limit_of_way(result: Mapping[str, Any]) -> float:
    """Seconds that a step takes at least where all state passes the link, by the way it went.

    A deferred update comes with the next forward pass: its state moves beside that, and not beside
    the backward pass, but for what free slots take early.
    """
    moved = float(result["limit"]["moved_seconds"])
    passes = result["passes"]
    if set(result["ways"]) == {"deferred"}:
        forward: float = max(moved, passes["forward"]["compute"])
        return forward + float(passes["backward"]["compute"])
    return max(moved, sum(float(one["compute"]) for one in passes.values()))
