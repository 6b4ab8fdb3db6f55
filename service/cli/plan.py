"""`headrace plan`: what a run would be and cost, on this box or one that is described."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, DeviceBytes, HostBytes, Json, ModelsDirs, Strategy, Volumes
from .output import CliError, Exit, human_count, print_json
from .plan_view import show_plan, show_schemes
from .run_settings import as_option, exact_bytes, run_values, say_option
from .serve import Config, DataDir, load_settings

if TYPE_CHECKING:
    from headrace.engine import Box, ModelSpec

BoxFile = Annotated[
    str | None,
    typer.Option("--box", help="A file that describes a box, or the name of one that comes with "
                               "Headrace; without it: this one. `--box list` names them."),
]  # fmt: skip
Shape = Annotated[
    str | None,
    typer.Option(
        help="A named shape; no model files are needed. `--shape list` names them. Each counts an "
        "output head of its own, also where the model of that name ties it to the embedding."
    ),
]
Model = Annotated[Path | None, typer.Option(help="A model's directory; only headers are read.")]
Rows = Annotated[int, typer.Option(min=1, help="Rows a step.")]
MicrobatchRows = Annotated[
    int | None, typer.Option(min=1, help="Rows at once, at most; all of a step unless given.")
]
Tokens = Annotated[
    int, typer.Option(min=2, help="Tokens of the longest row; of dpo with both answers.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps of the whole job.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Of a job file any field of the "
                 "job, as for `headrace submit`; else of the run, such as commit_every_steps=10, "
                 "clip_mode=per_layer, max_wear_share=0.1; repeatable."),
]  # fmt: skip
Schemes = Annotated[
    bool, typer.Option(help="Compare ways to keep the state, by bytes alone, instead of one plan.")
]
Params = Annotated[float | None, typer.Option(help="With --schemes: so many parameters.")]
Price = Annotated[float | None, typer.Option(min=0, help="Per hour, in any currency.")]


# What only one way to ask looks at, by the parameters' names.
IDLE_OPTIONS = {
    "a job file": ("shape", "layers", "rows", "microbatch_rows", "tokens", "steps", "schemes",
                   "params"),
    "--schemes": ("microbatch_rows", "steps", "strategy", "settings"),
    "--model": ("layers", "params"),
    "--shape": ("params",),
}  # fmt: skip


def plan(
    context: typer.Context,
    job_file: Annotated[
        Path | None, typer.Argument(help="A create body as JSON or YAML, as for `headrace train`.")
    ] = None,
    shape: Shape = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Shorten or lengthen it.")] = None,
    model: Model = None,
    box: BoxFile = None,
    rows: Rows = 8,
    microbatch_rows: MicrobatchRows = None,
    tokens: Tokens = 2048,
    steps: Steps = None,
    strategy: Strategy = None,
    settings: Settings = None,
    schemes: Schemes = False,
    params: Params = None,
    device_price: Price = None,
    host_price: Price = None,
    volumes_price: Price = None,
    config: Config = None,
    data_dir: DataDir = None,
    models_dir: ModelsDirs = None,
    volume: Volumes = None,
    device: Device = None,
    device_bytes: DeviceBytes = None,
    host_bytes: HostBytes = None,
    as_json: Json = False,
) -> None:
    """Say what a run would take: time, memory, bytes, wear, and what it would wait for.

    Of a job file, or of a shape or model with rows of a given length. Nothing is trained, and a
    box that is described, not measured, gives a plan and no more.
    """
    if box == "list" or shape == "list":
        _list_boxes(as_json) if box == "list" else _list_shapes(as_json)
        return
    refuse_idle(context)
    here = load_settings(
        config, data_dir=data_dir, models_dir=models_dir or None, volumes=volume or None,
        device=device, device_bytes=device_bytes, host_bytes=host_bytes,
    )  # fmt: skip
    found = _find_box(box, here, (device_price, host_price, volumes_price))
    if job_file is not None:
        report = _of_job(job_file, model, strategy, settings or [], here, found)
    elif schemes:
        if not (params or shape or model):
            raise CliError("give one of --shape, --model and --params, to compare ways for it")
        report = _compare(found, params or _spec(shape, layers, model), rows * tokens)
        print_json(report) if as_json else show_schemes(report)
        return
    else:
        values = run_values(settings or []) | {"batch_rows": rows}
        values |= {"microbatch_rows": microbatch_rows or rows}
        values |= {} if strategy is None else {"strategy": strategy}
        values |= {"device_bytes": here.device_bytes, "host_bytes": here.host_bytes}
        elsewhere = "" if box else "; or plan for another box: --box, `--box list` names some"
        report = _of_shape(_spec(shape, layers, model), found, values, tokens, steps, elsewhere)
    print_json(report) if as_json else show_plan(report)


def refuse_idle(context: typer.Context) -> None:
    """CliError for an option that says nothing of what is asked for by the others."""
    ways = {"a job file": "job_file", "--schemes": "schemes", "--model": "model"}
    way = next((one for one, name in ways.items() if context.params[name]), "--shape")
    for name in IDLE_OPTIONS[way]:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
            raise CliError(f"{option} says nothing of a plan for {way}; leave it out")


def _find_box(name: str | None, here: Any, prices: Sequence[float | None]) -> "Box":
    """The box that is described, or this one, with the prices that were given."""
    from headrace.engine import BadBoxFile, Prices, read_box
    from headrace.storage import StoreError

    from ..site import Site

    try:
        box = Site.of(here).box() if name is None else read_box(name)
    except (BadBoxFile, StoreError) as error:
        raise CliError(str(error)) from error
    if any(prices):
        device, host, volumes = (price or 0.0 for price in prices)
        known = replace(box.known_rates(), prices=Prices(device=device, host=host, volumes=volumes))
        box = replace(box, rates=known)
    return box


def _spec(shape: str | None, layers: int | None, model: Path | None) -> "ModelSpec":
    from headrace.engine import ModelError, read_model_spec, shape_spec

    if (shape is None) == (model is None):
        raise CliError("give a job file, or one of --shape and --model")
    try:
        return shape_spec(shape, layers) if shape else read_model_spec(model or Path())
    except (ValueError, ModelError) as error:
        raise CliError(str(error)) from error


def _of_shape(
    spec: "ModelSpec",
    box: "Box",
    values: dict[str, Any],
    tokens: int,
    steps: int | None,
    elsewhere: str,
) -> dict[str, Any]:
    """The plan for a model and rows of that length. CliError with the numbers when none fits, and
    at its end `elsewhere`, what else could be asked."""
    from headrace.engine import (
        CannotFit,
        JobSize,
        TrainConfig,
        fit_microbatch,
        make_plan,
        method_spec,
        nearest_fit,
        passed_params,
        plan_report,
    )  # fmt: skip

    on_gpu = box.device == "cuda"
    usual = {
        "device": box.device,
        "compute_dtype": "bfloat16" if on_gpu else "float32",
        "loss_chunk_tokens": 4096 if on_gpu else 256,
    }
    job = JobSize(num_steps=steps)
    try:
        config = TrainConfig.from_dict({"model": "", "dataset": "", **usual, **values})
        spec = method_spec(spec, config)
        config = fit_microbatch(spec, config, longest_row_tokens=tokens, box=box)
        made = make_plan(spec, config, longest_row_tokens=tokens, box=box, job=job)
    except CannotFit as error:
        nearest = nearest_fit(spec, config, longest_row_tokens=tokens, box=box, job=job)
        words = nearest.in_words(say=as_option, size_of=exact_bytes)
        refused = error.in_words(say_option)
        raise CliError(f"{refused}{'; ' * bool(words)}{words}{elsewhere}", Exit.REFUSED) from error
    except (TypeError, ValueError) as error:
        raise CliError(str(error)) from error
    report = plan_report(made, spec, config, longest_row_tokens=tokens, box=box, job=job)
    counts = {
        "num_params": spec.num_params,
        "num_passed_params": passed_params(spec),
        "num_trained_params": spec.num_trained_params,
    }
    return {"model": {"family": spec.family, **counts}, "plan": report}


def _of_job(
    job_file: Path,
    model: Path | None,
    strategy: str | None,
    settings: list[str],
    here: Any,
    box: "Box",
) -> dict[str, Any]:
    """The plan of a create body, as the daemon would answer it."""
    from ..errors import ApiError
    from ..foreground import find_sources
    from ..job_spec import resolve_job
    from ..schemas import parse_create
    from ..shapes import plan_object
    from ..site import Site
    from .job_file import read_job_file
    from .settings import apply_settings

    body = read_job_file(job_file) | ({} if strategy is None else {"strategy": strategy})
    apply_settings(body, settings, method=None)
    try:
        asked = parse_create(body).body()
        sources = find_sources(asked, here, model, job_file.absolute().parent)
        return plan_object(asked, resolve_job(asked, sources, Site.of(here).on(box)))
    except ApiError as error:
        hint = f" {error.hint}" if error.hint else ""
        raise CliError(f"{error.message}{hint}", Exit.REFUSED) from error


def _compare(box: "Box", model: "float | ModelSpec", tokens: int) -> dict[str, Any]:
    """All schemes for a model, or for a dense one of so many parameters."""
    from headrace.engine import compare_schemes, passed_params

    if isinstance(model, float | int):
        num_params, share = float(model), 1.0
    else:
        num_params, share = float(model.num_params), passed_params(model) / model.num_params
    rates = box.known_rates()
    drives = rates.drives(list(box.volumes))
    found = compare_schemes(rates, drives, num_params=num_params, tokens=tokens, passed_share=share)
    return {
        "box": rates.name,
        "origin": rates.origin,
        "num_params": num_params,
        "tokens": tokens,
        "schemes": [asdict(one) for one in found],
    }


def _list_boxes(as_json: bool) -> None:
    from headrace.engine import read_box, shipped_boxes

    from .output import print_table

    boxes = {name: read_box(name).known_rates().name for name in shipped_boxes()}
    if as_json:
        print_json(boxes)
    else:
        print_table(["box", "what it is"], [[*one] for one in boxes.items()], empty="")


def _list_shapes(as_json: bool) -> None:
    from headrace.engine import SHAPES, shape_spec

    from .output import print_table

    shapes = {name: shape_spec(name).num_params for name in SHAPES}
    if as_json:
        print_json(shapes)
    else:
        rows = [[name, human_count(params)] for name, params in shapes.items()]
        print_table(["shape", "parameters"], rows, empty="")
