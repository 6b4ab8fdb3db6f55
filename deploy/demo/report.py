"""What the demo shows at its end: measured values side by side, and claims that are checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.service.cli.output import console, human_bytes

from .job import Ran, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something the demo says of itself, and whether it was so in this run."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, the right answer, and what the model said before and after training."""

    text: str
    wanted: str
    before: str
    after: str


def claims(
    ran: Ran, recipe: Recipe, questions: Sequence[Question], *, state_bytes: int, budget_bytes: int
) -> list[Claim]:
    """Every claim with its numbers."""
    return [
        Claim(text=f"the job {ran.job['status']}", holds=ran.job["status"] == "succeeded"),
        Claim(
            text=f"training state {human_bytes(state_bytes)} is larger than the budget "
            f"{human_bytes(budget_bytes)}",
            holds=state_bytes > budget_bytes,
        ),
        traffic_claim(ran, state_bytes),
        memory_claim(ran, budget_bytes),
        *resume_claims(ran, recipe),
        loss_claim(ran),
        answers_claim(questions),
    ]


def traffic_claim(ran: Ran, state_bytes: int) -> Claim:
    """The whole state was read from and written to the volume in every step."""
    least = {
        link: min((moved(step, link) for step in ran.steps), default=0)
        for link in ("nvme_read", "nvme_write")
    }
    return Claim(
        text="every step read and wrote the whole state on the volume: at least "
        + " and ".join(f"{link} {human_bytes(count)}" for link, count in least.items()),
        holds=all(count >= state_bytes for count in least.values()),
    )


def memory_claim(ran: Ran, budget_bytes: int) -> Claim:
    """No worker took more memory above what it had after import than the budget."""
    above = {pid: ran.peak_bytes.get(pid, 0) - base for pid, base in ran.base_bytes.items()}
    peak = max(above.values(), default=0)
    return Claim(
        text=f"the worker's memory peaked {human_bytes(peak)} above its size after import, "
        f"budget {human_bytes(budget_bytes)}",
        holds=0 < peak <= budget_bytes,
    )


def resume_claims(ran: Ran, recipe: Recipe) -> list[Claim]:
    """The worker was killed, another one went on, and no step is missing or double."""
    steps = [step["step"] for step in ran.steps]
    resumed = [text for text in ran.messages if text.startswith("going on after step")]
    return [
        Claim(
            text=f"worker {ran.killed_pid} was killed after step {ran.killed_at}, worker "
            f"{ran.workers[-1] if ran.workers else 'none'} went on",
            holds=ran.killed_pid > 0 and len(ran.workers) == 2,
        ),
        Claim(
            text=f"it resumed from a commit: {resumed[0] if resumed else 'it started over'}",
            holds=bool(resumed),
        ),
        Claim(
            text=f"{len(steps)} of {recipe.max_steps} steps are in the record, each once",
            holds=steps == list(range(1, recipe.max_steps + 1)),
        ),
    ]


def loss_claim(ran: Ran) -> Claim:
    """The evaluation loss fell."""
    losses = [evaluation["full_valid_loss"] for evaluation in ran.evaluations]
    if len(losses) < 2:
        return Claim(text="no evaluation before and after was recorded", holds=False)
    text = f"evaluation loss {losses[0]:.3f} before, {losses[-1]:.3f} after"
    return Claim(text=text, holds=losses[-1] < losses[0])


def answers_claim(questions: Sequence[Question]) -> Claim:
    """More answers are right than before."""
    before = sum(is_right(q.before, q.wanted) for q in questions)
    after = sum(is_right(q.after, q.wanted) for q in questions)
    text = f"{before} of {len(questions)} answers right before, {after} after"
    return Claim(text=text, holds=after > before)


def is_right(answer: str, wanted: str) -> bool:
    """Whether an answer is the wanted one, but for capitals and surrounding space."""
    return answer.strip().casefold() == wanted.strip().casefold()


def one_line(answer: str) -> str:
    """An answer without its line breaks."""
    return " ".join(answer.split())


def moved(step: dict[str, Any], link: str) -> int:
    """Payload bytes of one step over a tier edge."""
    return int((step.get("links") or {}).get(link, {}).get("payload_bytes", 0))


def show(ran: Ran, questions: Sequence[Question], found: Sequence[Claim]) -> bool:
    """Print it all; whether every claim holds."""
    out = console()
    for question in questions:
        right = "  (right)" if is_right(question.after, question.wanted) else ""
        out.print(f"\n{question.text}", style="bold", markup=False)
        out.print(f"  before  {one_line(question.before)}", markup=False)
        out.print(f"  after   {one_line(question.after)}{right}", markup=False)
    out.print()
    if ran.steps:
        last = ran.steps[-1]
        edges = ", ".join(f"{link} {human_bytes(moved(last, link))}" for link in last["links"])
        out.print(f"bytes over each tier edge in the last step: {edges}", markup=False)
    for claim in found:
        mark = "[green]true [/]" if claim.holds else "[bold red]FALSE[/]"
        out.print(mark, claim.text)
    return all(claim.holds for claim in found)
