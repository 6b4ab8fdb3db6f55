"""`headrace bundle` and `headrace replay`: a job on paper, and the same job again."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.storage import file_sha256

from ..bundle_format import FORMAT, weight_hashes
from ..client import Client
from .options import DEFAULT_URL, JobId, Json, TokenFile, Url, connect
from .output import CliError, Exit, console, print_json

PARTS = {"job": dict, "request": dict, "data": list, "exports": list}  # that a replay reads
OPTIONS = {"training_file": "--train", "validation_file": "--valid"}


def bundle(
    job_id: JobId,
    target: Annotated[Path, typer.Argument(help="The JSON file to make; it must not exist yet.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Write all that it takes to make a job's weights again, but for the rows and the model.

    The settled request, hashes of data and weights, versions, hardware, plan and loss curve.
    """
    if target.exists():
        raise CliError(f"{target} exists already; name a file that does not")
    with connect(url, token_file) as client:
        size = client.download(f"/v1/fine_tuning/jobs/{job_id}/bundle", target)
    if as_json:
        print_json({"job": job_id, "path": str(target), "bytes": size})
    else:
        console().print(f"the bundle of {job_id} is in {target}", markup=False)


def replay(
    bundle_file: Annotated[Path, typer.Argument(help="What `headrace bundle` wrote.")],
    train: Annotated[
        Path | None,
        typer.Option(help="The training rows, where the daemon has no file of their hash."),
    ] = None,
    valid: Annotated[Path | None, typer.Option(help="The validation rows, likewise.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Submit a bundle's job again, watch it, and say whether its weights are the same bits.

    The model goes by its name. Ends with 1 where the weights differ, and says what else does.
    """
    told = read_bundle(bundle_file)
    with connect(url, token_file) as client:
        files = {"training_file": train, "validation_file": valid}
        body = {**told["request"], **_same_files(told["data"], files, client)}
        job_id = client.create_job(body)["id"]
        if not as_json:
            console().print(f"{job_id} is {told['job']['id']} again", markup=False)
        code = _watch(client, job_id, as_json)
        if code != Exit.OK:
            raise typer.Exit(code)
        again = dict(client.call("GET", f"/v1/fine_tuning/jobs/{job_id}/bundle"))
    found = compare(told, again)
    if as_json:
        print_json({"job": job_id, **found})
    else:
        console().print(_in_words(found), markup=False)
    raise typer.Exit(Exit.OK if found["same_weights"] else Exit.FAILED)


def read_bundle(path: Path) -> dict[str, Any]:
    """A bundle file; CliError for what is none, or of another format."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CliError(f"cannot read the bundle {path}: {error}") from error
    if not isinstance(told, dict) or told.get("object") != "fine_tuning.job.bundle":
        raise CliError(f"{path} is no bundle; make one with `headrace bundle JOB {path}`")
    if told.get("format") != FORMAT:
        raise CliError(f"{path} is of format {told.get('format')}; this version reads {FORMAT}")
    for name, kind in PARTS.items():
        if not isinstance(told.get(name), kind):
            raise CliError(f"{path} is damaged: it has no {name}; make it again")
    return told


def compare(told: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Whether two jobs made the same weights, and what of them and around them differs."""
    wanted, got = (weight_hashes(one["exports"]) for one in (told, again))
    around = ("numerics_key", "surroundings")
    return {
        "same_weights": bool(wanted) and wanted == got,
        "files": {name: got.get(name) == digest for name, digest in wanted.items()},
        "differs": {
            f"{name}.{key}": [old.get(key), new.get(key)]
            for name in around
            for old, new in [(told[name] or {}, again[name] or {})]
            for key in {**old, **new}
            if old.get(key) != new.get(key)
        },
    }


def _in_words(found: dict[str, Any]) -> str:
    count = len(found["files"])
    if found["same_weights"]:
        return f"the same weights, bit for bit, in {count} file{'s' if count != 1 else ''}"
    if not count:
        return "the bundle has no weights to compare with: its job had exported none"
    others = ", ".join(name for name, same in found["files"].items() if not same)
    why = "; ".join(f"{name} was {was}, now {now}" for name, (was, now) in found["differs"].items())
    return f"other weights: {others} differ. {why or 'Nothing around them does'}"


def _same_files(
    data: list[dict[str, Any]], given: dict[str, Path | None], client: Client
) -> dict[str, str]:
    """Ids of files with the bundle's hashes: of the daemon, or uploaded from what is given."""
    held = {file.get("sha256"): file["id"] for file in client.files()}
    found = {}
    for told in data:
        param, wanted = told["param"], told["sha256"]
        path = given[param]
        if path is not None and _digest(path) != wanted:
            raise CliError(f"{path} is not the {param} of the bundle: it has another sha256")
        if wanted in held:
            found[param] = held[wanted]
        elif path is not None:
            found[param] = client.upload(path)["id"]
        else:
            raise CliError(
                f"the daemon has no file with the sha256 of {told['filename']}, {wanted}; give it "
                f"with {OPTIONS[param]}"
            )
    return found


def _digest(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error}") from error


def _watch(client: Client, job_id: str, as_json: bool) -> Exit:
    from .watch import exit_code, watch_job, watch_json

    if as_json:
        return exit_code(watch_json(client, job_id))
    progress = watch_job(client, job_id)
    console().print(progress.outcome(), markup=False)
    return exit_code(progress)
