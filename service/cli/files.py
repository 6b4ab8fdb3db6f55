"""`headrace files`: training files and results on the daemon."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_URL, Json, TokenFile, Url, connect
from .output import CliError, Exit, console, human_bytes, print_json, print_table

FileId = Annotated[str, typer.Argument(help="The file's id, file-…")]


def list_files(url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False) -> None:
    """List files, newest first."""
    with connect(url, token_file) as client:
        found = client.files()
    if as_json:
        print_json(found)
        return
    rows = [
        [one["id"], one["filename"], human_bytes(one["bytes"]), one["purpose"], _day(one)]
        for one in found
    ]
    print_table(["file", "name", "size", "purpose", "made"], rows, empty="no files yet")


def upload(
    paths: Annotated[list[Path], typer.Argument(help="JSONL, a JSON array (gzip, zstd), Parquet.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Upload training files and print their ids."""
    for path in paths:
        if not path.is_file():
            raise CliError(f"{path} is not a file")
    with connect(url, token_file) as client:
        for path in paths:
            file = client.upload(path)
            if as_json:
                print_json(file)
            else:
                size = human_bytes(file["bytes"])
                console().print(f"{file['id']}  {path}  {size}", markup=False)


def get(
    file_id: FileId,
    target: Annotated[Path, typer.Argument(help="Where to write it; it must not exist yet.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Download a file, such as the table of steps of a finished job."""
    if target.exists():
        raise CliError(f"{target} exists already; name a file that does not")
    with connect(url, token_file) as client:
        size = client.download(f"/v1/files/{file_id}/content", target)
    if as_json:
        print_json({"id": file_id, "path": str(target), "bytes": size})
    else:
        console().print(f"{human_bytes(size)} in {target}", markup=False)


def delete(
    file_ids: Annotated[list[str], typer.Argument(help="Ids of files, file-…")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Delete files that no unfinished job reads."""
    with connect(url, token_file) as client:
        for file_id in file_ids:
            answer = client.call("DELETE", f"/v1/files/{file_id}")
            if as_json:
                print_json(answer)
            else:
                console().print(f"{file_id} is deleted", markup=False)
    raise typer.Exit(Exit.OK)


def _day(file: dict[str, int]) -> str:
    return datetime.fromtimestamp(file["created_at"], UTC).strftime("%Y-%m-%d")
