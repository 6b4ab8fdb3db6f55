"""What preparing a job is: its data sets, its microbatch, its plan. No torch, no device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.engine import (
    BadSetting,
    Box,
    CannotFit,
    DataProblem,
    DataReport,
    DatasetCache,
    JobSize,
    ModelError,
    ModelSpec,
    Prepared,
    Progress,
    RowLengths,
    RunEvent,
    StrategyConflict,
    TrainConfig,
    exports_of,
    fit_microbatch,
    load_tokenizer,
    make_plan,
    method_spec,
    model_key,
    plan_report,
    prepare_model,
    read_model_spec,
    settle_microbatch,
)

from .prepare_request import Emit, PrepareRequest, Refused

TOLD_SECONDS = 10.0
MENDABLE = (BadSetting, CannotFit, DataProblem, ModelError, StrategyConflict)


def prepare_job(request: PrepareRequest, emit: Emit) -> TrainConfig:
    """Make the data sets, choose the microbatch, check the plan. Refused says what to mend."""
    job_dir = Path(request.job_dir)
    emit(RunEvent(type="phase", message="reading the tokenizer"))
    with _blaming("model"):
        assets = prepare_model(Path(request.model_dir), Path(request.cache_dir))
        tokenizer = load_tokenizer(assets)
        spec = read_model_spec(Path(request.model_dir))
    dataset, valid = job_dir / "dataset", job_dir / "valid" if request.validation_file else None
    config = TrainConfig.from_dict(
        {
            **request.config,
            "model": request.model_dir,
            "dataset": str(dataset),
            "eval_dataset": str(valid) if valid else None,
            "assets": str(assets),
            "compile_cache": str(Path(request.cache_dir) / "compiled"),
        }
    )
    _check_exports(config, spec)
    cache = DatasetCache(Path(request.cache_dir) / "datasets")
    tokenizer_key = model_key(Path(request.model_dir))

    def tokenize(file: str, param: str, target: Path, training: Prepared | None) -> Prepared:
        emit(RunEvent(type="phase", message="tokenizing"))
        with _blaming(param):
            made = cache.prepare(
                [Path(file)],
                tokenizer_key=tokenizer_key,
                training=training,
                tokenizer=tokenizer,
                out_dir=target,
                max_seq_len=request.max_seq_len,
                vocab_size=spec.vocab_size,
                overlong=request.overlong,
                train_on=request.train_on,
                batch_rows=config.batch_rows,
                microbatch_rows=config.microbatch_rows,
                objective=config.objective,
                columns=request.columns,
                progress=tell_tenths(emit, param),
            )
        report = made.report
        if made.from_cache:
            said = f"{param}: the same rows were tokenized before, and are not again"
            emit(RunEvent(type="message", message=said))
        emit(RunEvent(type="message", message=describe(param, report), data=report.to_dict()))
        for warning in report.warnings:
            said = f"{param}: {request.named(warning)}"
            emit(RunEvent(type="message", level="warn", message=said))
        return made

    made = tokenize(request.training_file, "training_file", dataset, None)
    trained = made.report
    if request.validation_file and valid:
        tokenize(request.validation_file, "validation_file", valid, made)
    emit(RunEvent(type="phase", message="planning"))
    lengths = RowLengths.read(config)
    job = JobSize(trained_share=trained.trained_tokens / trained.tokens)
    return _fit(config, spec, Box.from_dict(request.box), lengths, job, emit)


def _check_exports(config: TrainConfig, spec: ModelSpec) -> None:
    """Whether the job's exports can be made of its model, before anything else is."""
    with _blaming(None):
        trained = method_spec(spec, config)
    with _blaming("export"):
        exports_of(config, trained)


def _fit(
    config: TrainConfig,
    spec: ModelSpec,
    box: Box,
    lengths: RowLengths,
    job: JobSize,
    emit: Emit,
) -> TrainConfig:
    longest = lengths.longest
    given: dict[str, Any] = {"longest_row_tokens": longest, "box": box, "lengths": lengths}
    with _blaming(None):
        spec = method_spec(spec, config)
        fitted = fit_microbatch(spec, config, **given)
        plan = make_plan(spec, fitted, job=job, **given)
    asked = settle_microbatch(config, longest)
    if fitted != asked:
        unit = "rows" if fitted.packing == "off" else "tokens"
        now, before = (getattr(one, f"microbatch_{unit}") for one in (fitted, asked))
        message = f"microbatches of {now} {unit}, not {before}, so that it fits"
        emit(RunEvent(type="message", level="warn", message=message))
    report = plan_report(plan, spec, fitted, job=job, **given)
    message = f"the plan holds for rows of up to {longest} tokens"
    emit(RunEvent(type="plan", message=message, data=report))
    return fitted


def tell_tenths(emit: Emit, param: str, *, seconds: float = TOLD_SECONDS) -> Progress:
    """Progress of a long reading as messages: each tenth, but none sooner than `seconds`."""
    told, at = 0, time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told, at
        tenths = 10 * done // max(1, total)
        if told < tenths < 10 and time.monotonic() - at >= seconds:
            told, at = tenths, time.monotonic()
            emit(RunEvent(type="message", message=f"{param}: {tenths}0 % is read"))

    return tell


def describe(param: str, report: DataReport) -> str:
    """A data report in a sentence."""
    dropped = f", {report.rows - report.kept} left out" if report.rows > report.kept else ""
    parted = f" as {report.examples} of a turn each" if report.examples > report.kept else ""
    counts = report.formats.items()
    formats = ", ".join(f"{count} of {name}" if len(counts) > 1 else name for name, count in counts)
    rows = "preferences" if report.objective == "dpo" else "rows"
    return (
        f"{param}: {report.kept} {rows} ({formats}){dropped}{parted}, {report.tokens} tokens, of "
        f"which {report.trained_tokens} are trained on; the longest row has {report.longest}; "
        f"packing saves {100 * report.padding['saved_by_packing']:.0f} % of what padding would "
        "compute"
    )


@contextmanager
def _blaming(param: str | None) -> Iterator[None]:
    """Turn what a user can mend, raised inside, into Refused with the field at fault."""
    try:
        yield
    except (*MENDABLE, OSError) as error:
        report = error.report if isinstance(error, DataProblem) else None
        raise Refused(error, param, report) from error
