"""One run from configuration to export: create or resume the store, train, evaluate, export."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headrace.storage import HostArena, NotCommitted, TensorStore, VolumeConfig

from .account import JobSize
from .adamw_cpu import cpu_kernel
from .advice import plan_report
from .box import detect_box
from .calibration import measure_once
from .checkpoint import LoopState, as_begun
from .config import TrainConfig
from .data import open_rows
from .errors import StateLost
from .export_forms import exports_of
from .finish import Exporter, prompts_of
from .hf_config import build_config
from .measure_memory import measuring_bytes
from .methods import method_spec
from .model import ModelSpec
from .packing import RowLengths, extent_of, settle_microbatch
from .plan import Plan, make_plan
from .report import OUTCOME_OF, Emit, Interrupted, Poll, RunEvent, RunResult, StopReason, Watch
from .row_order import num_steps
from .samples import open_sampler
from .source import read_model_spec
from .state import state_record
from .surroundings import surroundings
from .trainer import Trainer
from .weights import import_state
from .whole_run import Ended, train
from .working import MIB
from .workspace import Workspace

STARTED = "started"  # in the run's folder, from its first commit to its success


def run_job(
    config: TrainConfig,
    *,
    run_dir: Path,
    name: str,
    emit: Emit,
    poll: Poll,
    watch: Watch = lambda look: None,
) -> RunResult:
    """Train `config` to the end, or until `poll` asks to stop, and export the result.

    The store `name` on the configured volumes is created, or resumed from its last commit.
    Checkpoints go to `run_dir/checkpoints`, the result to `run_dir/export`, a GGUF file of it to
    `run_dir/export_gguf`. `watch` is given a way to look at the traffic, from any thread, as long
    as the run trains. Raises CannotFit, ExportMismatch, MemoryGone, ModelError, NotFinite,
    SettingsChanged (since the commit), StateLost and StoreError.
    """
    model_dir = Path(config.model)
    spec = method_spec(read_model_spec(model_dir), config)
    build_config(spec)  # refused now rather than after the import
    forms = exports_of(config, spec)
    volumes = [VolumeConfig.parse(text) for text in config.volumes]
    data = open_rows(config, config.dataset)
    eval_data = open_rows(config, config.eval_dataset) if config.eval_dataset else None
    commit = last_commit(volumes, name)
    resumes = commit is not None
    refuse_lost_state(run_dir, config, resumes)
    lengths = RowLengths(training=data.lengths, evaluation=eval_data.lengths if eval_data else None)
    config = settle_run(config, lengths, commit, emit)
    if config.calibrate:
        measure_for_rows(spec, config, volumes, lengths, emit)
    job = JobSize(trained_share=data.num_trained_tokens / data.num_tokens)
    plan, report = plan_run(spec, config, lengths, job, resumes=resumes)
    told = {**report, "surroundings": surroundings(config.device)}
    emit(RunEvent(type="plan", message=describe(plan), data=told))
    warn_of_slow_updates(plan, config, emit)
    run_dir.mkdir(parents=True, exist_ok=True)
    keep_compiled(config)
    with ExitStack() as stack:
        stack.enter_context(deterministic(config))
        opened = partial(open_or_import, spec, config, plan, volumes, name, emit, poll)
        try:
            store = stack.enter_context(opened())
        except Interrupted as stop:
            return not_begun(stop.reason, config, data.num_rows)
        (run_dir / STARTED).touch()
        workspace = partial(Workspace, spec, config, plan, store)
        sampler = open_sampler(config, eval_data, lengths.longest, emit)
        made = partial(Trainer, data=data, eval_data=eval_data, sampler=sampler)
        make = partial(made, emit=emit, run_dir=run_dir)
        exporter = Exporter(store, spec, config, slot_bytes=plan.slot_bytes, run_dir=run_dir)
        ended = train(workspace, make, exporter.listed(forms[0]), poll, watch)
        if ended.reason is not None:
            return ended.result(OUTCOME_OF[ended.reason], None)
        export_dir = exporter.export_all(forms, prompts_of(data), emit, step=ended.state.step)
        (run_dir / STARTED).unlink(missing_ok=True)
        return ended.result("succeeded", export_dir)


def not_begun(reason: StopReason, config: TrainConfig, num_rows: int) -> RunResult:
    """The result of a run that was stopped while its model was imported: no step, no state."""
    total = num_steps(
        num_rows,
        batch_rows=config.batch_rows,
        num_epochs=config.num_epochs,
        max_steps=config.max_steps,
    )
    ended = Ended(reason=reason, state=LoopState(), total_steps=total)
    return ended.result(OUTCOME_OF[reason], None)


def measure_for_rows(
    spec: ModelSpec,
    config: TrainConfig,
    volumes: Sequence[VolumeConfig],
    lengths: RowLengths,
    emit: Emit,
) -> None:
    """Measure what is not known yet of this machine, with microbatches, rows and memory as the run
    has them."""
    measure_once(
        spec,
        config,
        volumes,
        microbatch_tokens=extent_of(lengths, config).microbatch_tokens,
        most_bytes=measuring_bytes(spec, config, lengths),
        row_tokens=lengths.usual(config.objective),
        emit=emit,
    )


def settle_run(
    config: TrainConfig, lengths: RowLengths, commit: Mapping[str, Any] | None, emit: Emit
) -> TrainConfig:
    """The config with what these data decide, and as the run began where it goes on."""
    if commit is not None:
        begun = as_begun(config, commit)
        if begun.packing != config.packing:
            message = "this run began before rows were packed, so it goes on with padded ones"
            emit(RunEvent(type="message", message=message))
        config = begun
    return settle_microbatch(config, lengths.longest)


def plan_run(
    spec: ModelSpec, config: TrainConfig, lengths: RowLengths, job: JobSize, *, resumes: bool
) -> tuple[Plan, dict[str, Any]]:
    """The plan for these data on this machine, and all that is to be said of it.

    A store that exists already has its space.
    """
    box = detect_box(device=config.device, volumes=config.volumes)
    if resumes:
        box = replace(box, volumes=dict.fromkeys(box.volumes, 2**63))
    longest = lengths.longest
    plan = make_plan(spec, config, longest_row_tokens=longest, box=box, job=job, lengths=lengths)
    report = plan_report(
        plan, spec, config, longest_row_tokens=longest, box=box, job=job, lengths=lengths
    )
    return plan, report


def warn_of_slow_updates(plan: Plan, config: TrainConfig, emit: Emit) -> None:
    """Say it where the processor updates records without the compiled kernel."""
    kernel = cpu_kernel()
    if kernel.form == "chunked" and (plan.on_host or config.device == "cpu"):
        message = f"updates on the processor go chunk by chunk, several times slower: {kernel.why}"
        emit(RunEvent(type="message", level="warn", message=message))


def describe(plan: Plan) -> str:
    """A plan in a sentence."""
    homes = {"device": "on the device", "host": "in host memory", "nvme": "on NVMe"}
    where = ", ".join(
        f"{plan.tiers.count(tier)} {home}" for tier, home in homes.items() if tier in plan.tiers
    )
    away = [
        f"{count} {homes[tier]}"
        for tier in ("host", "nvme")
        if (count := plan.activation_tiers.count(tier))
    ]
    waits = f"inputs of layers {' and '.join(away)}, " if away else ""
    frozen = f" and {plan.frozen_bytes / MIB:.0f} MiB frozen" if plan.frozen_bytes else ""
    return (
        f"state {plan.state_format}, {plan.state_bytes[plan.state_format] / MIB:.0f} MiB{frozen}: "
        f"records {where}; {waits}{plan.num_slots} slots of {plan.slot_bytes / MIB:.0f} MiB, "
        f"{len(plan.keep_layers)} layers without recompute, {len(plan.on_host)} updated by the "
        f"processor; device "
        f"{plan.total_device_bytes / MIB:.0f} MiB, host {plan.total_host_bytes / MIB:.0f} MiB, "
        f"volumes {plan.volume_bytes / MIB:.0f} MiB"
    )


def refuse_lost_state(run_dir: Path, config: TrainConfig, resumes: bool) -> None:
    """StateLost when the run has committed before and its store is not there any more."""
    started = run_dir / STARTED
    if started.exists() and not resumes:
        raise StateLost(
            f"this run has committed steps, but its training state is not on "
            f"{', '.join(config.volumes)}: is the drive mounted? To start over from the model, "
            f"remove {started}"
        )


def last_commit(volumes: list[VolumeConfig], name: str) -> Mapping[str, Any] | None:
    """Metadata of the store's last commit; a store that never got that far is removed."""
    if not TensorStore.exists(volumes, name=name):
        return None
    try:
        with TensorStore.open(volumes, name=name, read_only=True) as store:
            return store.metadata
    except NotCommitted:
        TensorStore.remove(volumes, name=name)
        return None


def open_or_import(
    spec: ModelSpec,
    config: TrainConfig,
    plan: Plan,
    volumes: list[VolumeConfig],
    name: str,
    emit: Emit,
    poll: Poll = lambda: None,
) -> TensorStore:
    """The run's store: resumed, or created and filled from the model's files and committed.

    Raises Interrupted when `poll` asks to stop before it is filled; nothing of it stays.
    """
    if TensorStore.exists(volumes, name=name):
        return TensorStore.open(volumes, name=name, max_bytes_written=config.max_bytes_written)
    emit(RunEvent(type="phase", message="importing the model"))
    store = TensorStore.create(
        volumes,
        [state_record(layout, config.state_format) for layout in spec.records],
        name=name,
        description={"family": spec.family, "config": dict(spec.config)},
        keep_generations=config.keep_commits,
        prefill=config.prefill,
        max_bytes_written=config.max_bytes_written,
        scratch_bytes=plan.scratch_bytes,
    )
    try:
        with HostArena(plan.slot_bytes) as arena:
            store.begin(0)
            slot = arena.carve(plan.slot_bytes)
            import_state(Path(config.model), spec, store, slot, emit, seed=config.seed, poll=poll)
            store.commit(LoopState().to_metadata(config))
    except BaseException:
        store.close()
        TensorStore.remove(volumes, name=name)
        raise
    return store


def keep_compiled(config: TrainConfig) -> None:
    """Have compiled layers and kernels kept in `config.compile_cache`, where one is given.

    A process that finds them there neither compiles nor differentiates a layer again. Torch and
    Triton read these variables alone, each time they look something up.
    """
    if config.compile_cache is not None:
        folder = Path(config.compile_cache).absolute()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


@contextmanager
def deterministic(config: TrainConfig) -> Iterator[None]:
    """Ask torch for deterministic algorithms for the length of a run, where the job wants them."""
    if config.deterministic and config.device == "cuda":
        # Read by cuBLAS when its workspace is made; without it matrix products are refused.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    memory: Any = torch.utils.deterministic  # its one setting has no type
    before = torch.are_deterministic_algorithms_enabled()
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(config.deterministic)
    # Every element that is read has been written, so filling new memory would only cost time.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = filled
