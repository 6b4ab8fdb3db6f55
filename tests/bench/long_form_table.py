"""The results of `bench.long_form` for people: who learnt what, and how far apart they are."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

METHODS: Mapping[str, Mapping[str, Any]] = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "qlora": {"method": "lora", "frozen_format": "nf4"},
}
WHO = ("headrace", "peer")
UNTRAINED = "untrained"
Found = Mapping[str, Mapping[str, Any]]


def pairs(found: Found) -> list[tuple[float, float]]:
    """Evaluation losses of the product and its peer, where both have run."""
    names = {name.rpartition("-")[0] for name in found}
    both = [[found.get(f"{name}-{who}") for who in WHO] for name in sorted(names)]
    return [(ours["eval_loss"], peer["eval_loss"]) for ours, peer in both if ours and peer]


def holds(pair: tuple[float, float], tolerance: float) -> bool:
    """Whether the product's loss is near enough to its peer's."""
    ours, peer = pair
    return abs(ours - peer) <= tolerance * peer


def told(result: Mapping[str, Any]) -> str:
    """One contender in a line."""
    line = (
        f"evaluation loss {result['eval_loss']:.4f}, {100 * result['exact']:.0f} % exact "
        f"({100 * result['last']:.0f} % by the last number), judged in "
        f"{result['judge_seconds']:.1f} s"
    )
    if "train_seconds" not in result:
        return line
    steps = len(result["losses"])
    return (
        f"{line}; {steps} steps of {1000 * result['steps_seconds'] / steps:.0f} ms, "
        f"{result['train_seconds']:.1f} s with import and export"
    )


def table(found: Found, tolerance: float) -> str:
    """A line for each method and contender: the mean over the seeds, and each seed's."""
    lines = ["method  who        loss: mean, each         exact %: mean, each     by last number"]
    if UNTRAINED in found:
        lines.append(_line("none", UNTRAINED, [found[UNTRAINED]]))
    for method in METHODS:
        for who in WHO:
            names = (name for name in found if name.startswith(f"{method}-"))
            chosen = [found[name] for name in sorted(names) if name.endswith(f"-{who}")]
            if chosen:
                lines.append(_line(method, who, chosen))
    compared = pairs(found)
    if compared:
        worst = max(abs(ours / peer - 1) for ours, peer in compared)
        verdict = "holds" if all(holds(pair, tolerance) for pair in compared) else "MISSED"
        lines.append(
            f"{verdict}: evaluation losses at most {100 * worst:.2f} % apart in "
            f"{len(compared)} pairs (promised {100 * tolerance:g} %)"
        )
    return "\n".join(lines)


def _line(method: str, who: str, chosen: list[Mapping[str, Any]]) -> str:
    losses = [one["eval_loss"] for one in chosen]
    exact, last = ([100 * one[key] for one in chosen] for key in ("exact", "last"))
    each = " ".join(f"{loss:.4f}" for loss in losses)
    right = " ".join(f"{share:.0f}" for share in exact)
    return (
        f"{method:7} {who:9}  {mean(losses):.4f}  {each:22}  {mean(exact):5.1f}  {right:12}  "
        f"{mean(last):8.1f}"
    )
