"""`headrace rows`: the training rows whose loss stands out."""

from collections.abc import Mapping
from typing import Any

from .options import DEFAULT_URL, JobId, Json, TokenFile, Url, connect
from .output import console, print_json, print_table

NO_REASON = "rows are compared at the end of each epoch"  # where the daemon is an older one


def rows(
    job_id: JobId, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """Print the training rows whose loss is far above or below the others in every epoch.

    Far above are often wrong or broken, far below known by heart or empty of content.
    """
    from headrace.engine import ROW_LOSS_KINDS

    with connect(url, token_file) as client:
        found = client.row_losses(job_id)
    if as_json:
        print_json(found)
        return
    if found["step_number"] is None:
        console().print(f"no rows: {found.get('reason') or NO_REASON}", markup=False)
        return
    table = [
        [ROW_LOSS_KINDS[kind], place_of(row), losses_of(row)]
        for kind in ROW_LOSS_KINDS
        for row in found[kind]["rows"]
    ]
    print_table(["loss", "row", "in each epoch"], table, empty="no row stands out")
    for kind, words in ROW_LOSS_KINDS.items():
        more = found[kind]["count"] - len(found[kind]["rows"])
        if more:
            console().print(f"and {more} more {words}")
    middles = ", ".join(f"{loss:.4f}" for loss in found["medians"])
    console().print(f"the middle row of {found['num_rows']}: {middles}")


def place_of(row: Mapping[str, Any]) -> str:
    """Where a row is, in words."""
    if row["file"] is None:
        return f"row {row['row'] + 1} of those used"
    item = f" (item {row['item']})" if row["item"] else ""
    return f"{row['file']}, line {row['line']}{item}"


def losses_of(row: Mapping[str, Any]) -> str:
    """A row's losses, in words."""
    return ", ".join("–" if loss is None else f"{loss:.4f}" for loss in row["losses"])
