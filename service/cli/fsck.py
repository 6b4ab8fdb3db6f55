"""`headrace fsck`: which commits the training state has, whether they are whole, and going back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .bytes_bar import bytes_bar
from .checks import store_names
from .options import Json, Volumes
from .output import CliError, Exit, console, print_json, print_table
from .serve import Config, DataDir, load_settings

if TYPE_CHECKING:
    from headrace.storage import StoreReport, VolumeConfig


def fsck(
    name: Annotated[
        list[str] | None, typer.Option(help="A store, the job's id; without it every one.")
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    volume: Volumes = None,
    fall_back_to: Annotated[
        int | None,
        typer.Option(metavar="GENERATION", help="Make this commit of the one store live again."),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Check where the commits are, without reading all their bytes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every committed byte of the training state and verify its checksum. 1 if any is bad.

    Lists the commits of each store: the live one, the kept ones, and the one before, while its
    bytes are still there. With --fall-back-to, later commits are given up for an earlier one.
    """
    from headrace.storage import VolumeConfig

    settings = load_settings(config, data_dir=data_dir, volumes=volume or None)
    volumes = [VolumeConfig.parse(text) for text in settings.volume_list]
    names = name or store_names(volumes)
    if fall_back_to is not None:
        _go_back(volumes, names, fall_back_to)
    findings = [check_store(volumes, store, quick=quick) for store in names]
    if as_json:
        print_json(findings)
    else:
        _show(findings, empty=f"no training state in {', '.join(str(v.path) for v in volumes)}")
    raise typer.Exit(Exit.FAILED if any(f["problems"] for f in findings) else Exit.OK)


def check_store(
    volumes: "Sequence[VolumeConfig]", name: str, *, quick: bool = False
) -> dict[str, Any]:
    """Verify one store: its commits, and what is wrong with those that it promises to have."""
    from headrace.storage import StoreError, find_commits

    try:
        with bytes_bar(f"reading {name}") as progress:
            report = find_commits(volumes, name=name, content=not quick, progress=progress)
    except StoreError as error:
        return {"store": name, "generation": None, "step": None, "commits": [],
                "problems": [str(error)]}  # fmt: skip
    live = next((one for one in report.commits if one.live), None)
    return {
        "store": name,
        "generation": live and live.generation,
        "step": live and live.step,
        "problems": _problems(report),
        "commits": [
            {
                "generation": one.generation,
                "step": one.step,
                "live": one.live,
                "kept": one.kept,
                "num_records": one.num_records,
                "problems": list(one.problems),
            }
            for one in report.commits
        ],
    }


def _problems(report: "StoreReport") -> list[str]:
    """Damage to what is promised: the commit before the live one may be written over."""
    problems = list(report.problems)
    for one in report.commits:
        if one.live:
            problems += one.problems
        elif one.kept:
            problems += [f"kept commit {one.generation}: {problem}" for problem in one.problems]
    return problems


def _go_back(volumes: "Sequence[VolumeConfig]", names: list[str], generation: int) -> None:
    from headrace.storage import StoreError, fall_back

    if len(names) != 1:
        raise CliError("--fall-back-to needs one store; name it with --name")
    try:
        with bytes_bar(f"reading commit {generation}") as progress:
            live = fall_back(volumes, name=names[0], generation=generation, progress=progress)
    except StoreError as error:
        raise CliError(str(error), code=Exit.FAILED) from error
    typer.echo(f"{names[0]}: commit {live} is live and holds what {generation} held", err=True)


def _show(findings: Sequence[dict[str, Any]], *, empty: str) -> None:
    rows = [
        [found["store"], str(one["generation"]), str(one["step"]), _kind(one), _state(one)]
        for found in findings
        for one in found["commits"]
    ]
    if rows or not findings:  # a store that cannot be read has no rows, and is there all the same
        print_table(["store", "commit", "step", "", "state"], rows, empty=empty)
    for found in findings:
        for problem in found["problems"]:
            console().print(f"{found['store']}: {problem}")


def _kind(commit: dict[str, Any]) -> str:
    words = [word for word in ("live", "kept") if commit[word]]
    return ", ".join(words) or "before"


def _state(commit: dict[str, Any]) -> str:
    if not commit["problems"]:
        return "good"
    if commit["live"] or commit["kept"]:
        return f"{len(commit['problems'])} problems"
    return "written over in part"
