"""The commands that talk to a running daemon about jobs."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..client import Client, Refused
from .exports import (
    checkpoint_folder,
    copy_export,
    copy_gguf,
    describe_check,
    fetch_export,
    find_report,
)
from .options import (
    DEFAULT_URL,
    Columns,
    JobId,
    JobSettings,
    Json,
    Strategy,
    TokenFile,
    Url,
    connect,
    parse_columns,
)
from .output import CliError, Exit, console, human_bytes, print_json, print_table
from .plan_view import show_plan
from .status_view import result_of, show_job, show_status, steps_of


def submit(
    job_file: Annotated[
        Path | None,
        typer.Argument(help="A create body as JSON or YAML; options override its fields."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's name, as `headrace models` lists it.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="Training rows: a file, which is uploaded, or an id.")
    ] = None,
    valid: Annotated[str | None, typer.Option(help="Validation rows, likewise.")] = None,
    suffix: Annotated[str | None, typer.Option(help="A word for the name of the result.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same bits.")] = None,
    method: Annotated[
        Literal["supervised", "dpo"] | None,
        typer.Option(help="On answers (supervised), or on preferences between two (dpo)."),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="With --method dpo: with more, nearer to the model before; 0.1."),
    ] = None,
    settings: JobSettings = None,
    column: Columns = None,
    strategy: Strategy = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Say what it would be and cost; make no job.")
    ] = False,
    watch_it: Annotated[bool, typer.Option("--watch", help="Watch the job to its end.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Upload the rows and submit a fine-tuning job.

    Rows that the daemon holds already, by name and content, are not uploaded again.
    """
    from .body import job_body, with_uploads

    given: dict[str, Any] = {"model": model, "training_file": train, "validation_file": valid}
    given |= {"suffix": suffix, "strategy": strategy}
    if column:
        given |= {"dataset": {"columns": parse_columns(column)}}
    settings = [*(settings or []), *([] if beta is None else [f"beta={beta}"])]
    body = job_body(job_file, {**given, "seed": seed}, settings, method=method)
    plan_only = plan_only or body.get("dry_run") is True
    with connect(url, token_file) as client:
        body = with_uploads(body, client, beside=job_file)
        if plan_only:
            plan = client.plan(body)
            print_json(plan) if as_json else show_plan(plan)
            return
        job = client.create_job(body)
        if not watch_it:
            _show_job(job, as_json)
            return
        if not as_json:
            _show_job(job, as_json)
        _watch(client, job["id"], as_json)


def watch(
    job_id: JobId, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """Show a job live until it ends: loss, tokens/s, time left, and what it waits for.

    With --json: one event a line. Ctrl-C ends the watching only, never the job.
    """
    with connect(url, token_file) as client:
        _watch(client, job_id, as_json)


def _watch(client: Client, job_id: str, as_json: bool) -> None:
    from .watch import exit_code, watch_job, watch_json

    if as_json:
        raise typer.Exit(exit_code(watch_json(client, job_id)))
    try:
        progress = watch_job(client, job_id)
    except KeyboardInterrupt:
        console().print(f"{job_id} goes on; `headrace watch {job_id}` shows it again")
        raise typer.Exit(Exit.INTERRUPTED) from None
    console().print(progress.outcome(), markup=False)
    raise typer.Exit(exit_code(progress))


def jobs(
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    with connect(url, token_file) as client:
        found = client.jobs(limit=limit)
    if as_json:
        print_json(found)
        return
    rows = [
        [job["id"], job["status"], steps_of(job), job["model"], result_of(job)] for job in found
    ]
    print_table(["job", "status", "step", "model", "result"], rows, empty="no jobs yet")


def status(
    job_id: Annotated[str | None, typer.Argument(help="A job; without one, the daemon.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """What the daemon and its box, or one job, are doing now. With --json all there is to know."""
    with connect(url, token_file) as client:
        answer = client.job(job_id) if job_id else client.status()
    if as_json:
        print_json(answer)
    elif job_id:
        show_job(answer)
    else:
        show_status(answer)


def cancel(
    job_id: JobId, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """End a job for good, at the next step boundary."""
    _act(job_id, "cancel", url, token_file, as_json)


def pause(
    job_id: JobId, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """Stop a job at the next step boundary, committed, so that `resume` goes on from there."""
    _act(job_id, "pause", url, token_file, as_json)


def resume(
    job_id: JobId, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """Put a paused job back in the queue; go on with a failed one, as a new job."""
    with connect(url, token_file) as client:
        try:
            resumed, more = client.act(job_id, "resume"), ""
        except Refused:
            job = client.job(job_id)
            if job["status"] != "failed":
                raise
            body = {name: job[name] for name in ("model", "training_file")}
            resumed = client.create_job({**body, "resume_from": job_id})
            more = f"; goes on with the state of {job_id}"
        _show_job(resumed, as_json, more)


def free(
    job_id: JobId, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """Remove what a job that has ended, such as a failed one, still holds on the volumes."""
    with connect(url, token_file) as client:
        answer = client.free(job_id)
    if as_json:
        print_json(answer)
    else:
        what = "its space is free" if answer["freed"] else "it held no space on the volumes"
        console().print(f"{job_id}: {what}", markup=False)


def models(url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False) -> None:
    """List the models that a job can start from: those made by jobs, then the base models."""
    with connect(url, token_file) as client:
        found = client.models()
    if as_json:
        print_json(found)
        return
    rows = [[model["id"], model["owned_by"], model["path"]] for model in found]
    empty = "no models; each is a directory, not a link, in a --models-dir of the daemon"
    print_table(["model", "owner", "path"], rows, empty=empty)


def export(
    job_id: JobId,
    target: Annotated[
        Path, typer.Argument(help="The directory, or GGUF file, to make; it must not exist yet.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="A checkpoint of the job, by its id or name; the job's page lists them, and so "
            "does GET /v1/fine_tuning/jobs/ID/checkpoints."
        ),
    ] = None,
    gguf: Annotated[
        bool, typer.Option("--gguf", help="The GGUF file that the job made beside its model.")
    ] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Copy a finished job's model, or one of its checkpoints: a Hugging Face directory.

    From the daemon's disk where that is this machine's, else over the network. What was found when
    the export was read back is said too.
    """
    if target.exists():
        raise CliError(f"{target} exists already; name a directory that does not")
    if gguf and checkpoint:
        raise CliError("a checkpoint has no GGUF file; give --checkpoint or --gguf")
    with connect(url, token_file) as client:
        job = client.job(job_id)
        name = checkpoint or job.get("fine_tuned_model")
        if name is None:
            reason = f"job {job_id} is {job['status']}; only a job that succeeded has an export"
            raise CliError(f"{reason}. {_way_to_export(job)}", Exit.REFUSED)
        told = None if checkpoint else find_report(job, gguf=gguf)
        source = Path(checkpoint_folder(client, job_id, name) if checkpoint
                      else client.model(name)["path"])  # fmt: skip
        if gguf:
            copied = copy_gguf(client, job_id, told, target)
        elif source.is_dir():
            copied = copy_export(source, target)
        else:
            copied = fetch_export(client, job_id, checkpoint, target)
    answer = {"job": job_id, "model": name, "path": str(target)}
    if as_json:
        print_json({**answer, "bytes": copied, "report": told})
    else:
        console().print(f"{human_bytes(copied)} in {target}{describe_check(told)}", markup=False)


def _way_to_export(job: dict[str, Any]) -> str:
    """What leads to an export of a job that has none."""
    checkpoint = "--checkpoint copies one of the checkpoints that its page lists, if any"
    if job["status"] in ("paused", "failed"):
        return f"`headrace resume {job['id']}` goes on with it; {checkpoint}"
    if job["status"] == "cancelled":
        return f"Submit it again; {checkpoint}"
    return f"`headrace watch {job['id']}` tells when it has; {checkpoint}"


def _act(job_id: str, verb: str, url: str, token_file: Path | None, as_json: bool) -> None:
    with connect(url, token_file) as client:
        job = client.act(job_id, verb)
    waits = job["status"] == "running" and verb in ("cancel", "pause")
    _show_job(job, as_json, f"; {verb} follows when the step in hand is finished" if waits else "")


def _show_job(job: dict[str, Any], as_json: bool, more: str = "") -> None:
    if as_json:
        print_json(job)
    else:
        console().print(f"{job['id']} {job['status']}{more}", markup=False)
