"""`headrace samples`: what the model wrote at a job's evaluations."""

from itertools import islice
from typing import Annotated, Any

import typer

from .options import DEFAULT_URL, JobId, Json, TokenFile, Url, connect
from .output import console, print_json

ENDS = {"length": "…", "not_finite": " [a logit was no number]"}


def samples(
    job_id: JobId,
    evaluations: Annotated[
        int, typer.Option("--evaluations", "-n", min=1, help="The newest so many.")
    ] = 1,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Print what the model wrote for each prompt at a job's newest evaluation, oldest first.

    A job writes texts when it is given sample_prompts, or sample_rows with validation rows.
    """
    with connect(url, token_file) as client:
        found = list(islice(client.samples(job_id), evaluations))[::-1]
        reason = None if found else client.why_no_samples(job_id)
    if as_json:
        print_json(found)
        return
    if not found:
        console().print(f"no sample texts: {reason}", markup=False)
    for one in found:
        _print(one)


def _print(evaluation: dict[str, Any]) -> None:
    out = console()
    for sample in evaluation["samples"]:
        title = f"step {evaluation['step_number']}, {sample['source']}"
        out.print(title, style="bold", markup=False)
        out.print(sample["prompt"], style="dim", markup=False)
        out.print(sample["completion"] + ENDS.get(sample["ended"], ""), markup=False)
        if sample["expected"] is not None:
            out.print(f"wanted: {sample['expected']}", style="dim", markup=False)
