"""The reports of `data check`: of rows by their form alone, or with a model's tokens and labels."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bytes_bar import asked_to_stop, bytes_bar
from .output import CliError, Exit

if TYPE_CHECKING:
    from headrace.engine import FormCheck, Objective

Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be looked at, and how. `method` is what the rows are for; left open, the first one
    tells. `rules` are hyperparameters of a job, None where they are left open."""

    file: Path
    valid: Path | None
    model: Path | None
    method: "Objective | None" = None
    columns: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)

    def key(self) -> str:
        """The key of the contents of all these files, and of what was asked. CliError for what is
        no model."""
        from headrace.engine import ModelError, content_key, model_key

        from ..hyperparameters import row_rules, settle

        files = [path for path in (self.file, self.valid) if path]
        try:
            model = model_key(self.model) if self.model else None
        except ModelError as error:
            raise CliError(str(error), Exit.REFUSED) from error
        rules = dict(self.rules) if self.model else {}
        rules["usual"] = row_rules(settle({}, num_rows=1, max_positions=1))
        rules["objective"] = self.method
        return content_key(files, model=model, columns=dict(self.columns), **rules)


def make_report(wanted: Wanted) -> dict[str, Any]:
    """Look at all rows. Ctrl-C ends it with what was seen so far; `complete` is false then."""
    with asked_to_stop() as stop:
        return _with_model(wanted, stop) if wanted.model else _by_form(wanted, stop)


def _by_form(wanted: Wanted, stop: Stop) -> dict[str, Any]:
    from headrace.engine import DataProblem, check_rows

    def look(path: Path, method: "Objective | None") -> "FormCheck":
        with bytes_bar(path.name) as progress:
            return check_rows(
                path, max_problems=None, objective=method, columns=wanted.columns,
                progress=progress, stop=stop,
            )  # fmt: skip

    try:
        training = look(wanted.file, wanted.method)
        report = _form_report(training)
        if wanted.valid is not None:
            held_out = look(wanted.valid, training.objective)
            report["validation"] = _form_report(held_out)
            leaked = held_out.index.found_in(training.index)
            report["validation"] |= {"in_training": leaked.count, "warnings": leaked.examples}
            report["complete"] = training.complete and held_out.complete
    except DataProblem as error:
        return {"problems": [str(error)], "unreadable": True}
    return report


def _form_report(found: "FormCheck") -> dict[str, Any]:
    problems = [str(problem) for problem in found.problems]
    return {
        "form": found.form,
        "method": found.objective,
        "formats": found.formats,
        "rows_seen": found.num_rows,
        "complete": found.complete,
        "duplicates": found.index.duplicates().count,
        "reasons": found.reasons,
        "problems": problems if found.num_rows else ["there is no row in it"],
    }


def _with_model(wanted: Wanted, stop: Stop) -> dict[str, Any]:
    from headrace.engine import (
        ModelError,
        RowIndex,
        RowRules,
        load_tokenizer,
        prepare_model,
        read_model_spec,
    )

    assert wanted.model is not None
    with tempfile.TemporaryDirectory(prefix="headrace-data-") as directory:
        try:
            spec = read_model_spec(wanted.model)
            tokenizer = load_tokenizer(prepare_model(wanted.model, Path(directory)))
        except ModelError as error:
            raise CliError(str(error), Exit.REFUSED) from error
        rules = RowRules(
            vocab_size=spec.vocab_size,
            objective=wanted.method,
            columns=wanted.columns,
            **rules_of_a_job(wanted, max_positions=spec.max_positions),
        )
        how = {"tokenizer": tokenizer, "stop": stop}
        training = RowIndex()
        report = _account(wanted.file, index=training, rules=rules, **how)
        if wanted.valid is not None and report.get("complete", True):
            rules = replace(rules, objective=report.get("objective", wanted.method))
            report["validation"] = held_out = _account(
                wanted.valid, training=training, rules=rules, **how
            )
            if "notes" in held_out:
                held_out["in_training"] = held_out["notes"].get("in_training", {}).get("count", 0)
            report["complete"] = report["validation"].get("complete", True)
            report["unreadable"] = report["validation"].get("unreadable", False)
    return report


def rules_of_a_job(wanted: Wanted, *, max_positions: int) -> dict[str, Any]:
    """The fields of RowRules by which a job of these rows would go. CliError for a length that the
    model has not."""
    from headrace.engine import DataProblem

    from ..hyperparameters import row_rules, settle
    from ..survey import SECONDS, count_rows

    longest = wanted.rules.get("max_seq_len")
    if longest and longest > max_positions:
        message = f"max_seq_len is {longest}; the model takes at most {max_positions} tokens"
        raise CliError(message, Exit.REFUSED)
    num_rows = 0
    with suppress(DataProblem):  # which the account of the rows tells
        num_rows = count_rows(wanted.file, limit_seconds=SECONDS).num_rows
    kind = wanted.method or "supervised"
    settled = settle(wanted.rules, kind, num_rows=max(1, num_rows), max_positions=max_positions)
    return row_rules(settled)


def _account(file: Path, **how: Any) -> dict[str, Any]:
    """The report of a file; `refused` are rows of no use, by reason, `problems` say it in words."""
    from headrace.engine import DataProblem, check_dataset

    with bytes_bar(file.name) as progress:
        try:
            report = check_dataset([file], progress=progress, **how)
        except DataProblem as error:
            return {"problems": [str(error)], "unreadable": True}
    found = report.to_dict()
    found["refused"] = found.pop("problems")
    try:
        report.check()
    except DataProblem as error:
        return {**found, "problems": [str(error)]}
    return {**found, "problems": []}
