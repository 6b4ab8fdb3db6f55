"""`headrace bench io`: is the drive the limit? The store's road beside fio, in the same minutes."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .bench import box
from .options import Json, parse_size
from .output import CliError, Exit, console, human_bytes, print_json, print_table

if TYPE_CHECKING:
    from headrace.storage import DriveBench, LoadCase

KINDS = ("read", "write", "mixed")
FIO_FLOOR = 0.93  # of fio's rate at the same block and depth
BUSY_FLOOR = 0.75  # of its own rate, beside a thread that loops in Python
CPU_CEILING = 0.05  # processor seconds a GB
AIOFILES_BLOCK_BYTES = 4 << 20
DEPTH = 4
SWITCH_INTERVAL = 0.0005  # as the engine's process has it
Rates = dict[tuple[Any, ...], dict[str, list[float]]]  # (kind, block, depth) -> method -> rounds


def io(
    volume: Annotated[str, typer.Option(metavar="PATH", help="A directory on the drive.")] = ".",
    block: Annotated[
        list[str] | None, typer.Option(metavar="BYTES", help="Of a call; repeatable; 4MiB, 16MiB.")
    ] = None,
    depth: Annotated[
        list[int] | None, typer.Option(min=1, help="Calls in flight; repeatable; 1, 4.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Methods take turns so many times.")] = 7,
    size: Annotated[str, typer.Option(metavar="BYTES", help="Moved in each turn.")] = "1GiB",
    device: Annotated[str, typer.Option(help="cuda: the way to the GPU too.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure reads, writes and both against fio, alone and beside a busy Python thread.

    Exit code 1 when a floor is missed: 0.93 of fio at equal block and depth, 0.75 of its own rate
    beside the busy thread, 0.05 processor seconds a GB. Where fio is not installed, the first of
    these is not judged.
    """
    from headrace.storage import StoreError

    blocks = [parse_size(text) or 0 for text in block or ["4MiB", "16MiB"]]
    try:
        result = measure(
            volume, blocks, depth or [1, DEPTH], rounds, parse_size(size) or 0, device=device
        )
    except (StoreError, ValueError) as error:
        raise CliError(str(error)) from error
    if as_json:
        print_json(result)
    else:
        _show(result)
    raise typer.Exit(Exit.OK if all(result["holds"].values()) else Exit.FAILED)


def measure(
    volume: str, blocks: list[int], depths: list[int], rounds: int, size: int, *, device: str
) -> dict[str, Any]:
    """Every case in every round, each method in its turn; medians and ratios of the rounds."""
    from headrace.storage import DriveBench, LoadCase, VolumeConfig

    from . import io_methods

    shapes = {(block, depth) for block in blocks for depth in depths}
    shapes.add((max(blocks), DEPTH))  # what the extras are held against
    cases = [
        LoadCase(kind=kind, block_bytes=block, depth=depth)  # type: ignore[arg-type]
        for kind in KINDS
        for block, depth in sorted(shapes)
    ]
    largest = max(case.block_bytes * case.depth for case in cases)
    arena = max(largest, DEPTH * max(blocks))
    config = VolumeConfig.parse(volume)
    version = io_methods.fio_version()
    with (
        DriveBench(config, file_bytes=size, arena_bytes=arena) as bench,
        io_methods.huge_pages(io_methods.fio_memory_bytes(cases)) as huge,
        _switch_interval(),
    ):
        rates: Rates = {}
        cpu: dict[tuple[Any, ...], list[float]] = {}
        for turn in range(rounds):
            for case in cases:
                _one_turn(bench, case, size, huge and version is not None, turn, rates, cpu,
                          fio=version is not None)  # fmt: skip
            _extras(bench, max(blocks), size, huge, rates, fio=version is not None)
        status = bench.status
    result: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "volume": volume,
        "filesystem": status.filesystem,
        "active": status.active,
        "fio": version or "not installed",
        "fio_huge_pages": huge,
        "rounds": rounds,
        "bytes_per_turn": size,
        "cases": [_summary(key, methods, cpu.get(key)) for key, methods in rates.items()],
        "box": box(),
    }
    if device == "cuda":
        from headrace.storage import measure_device_road

        result["device"] = measure_device_road(config, rounds=rounds)
    result["holds"] = _holds(result)
    return result


def _one_turn(
    bench: "DriveBench",
    case: "LoadCase",
    size: int,
    huge: bool,
    turn: int,
    rates: Rates,
    cpu: dict[tuple[Any, ...], list[float]],
    *,
    fio: bool,
) -> None:
    from . import io_methods

    key = (case.kind, case.block_bytes, case.depth)
    methods = rates.setdefault(key, {"headrace": [], **({"fio": []} if fio else {})})

    def ours() -> None:
        result = bench.run(case, size)
        methods["headrace"].append(result.bytes_per_second)
        cpu.setdefault(key, []).append(result.cpu_seconds / (size / 1e9))

    def theirs() -> None:
        rate = io_methods.fio_rate(
            bench.path, case, file_bytes=bench.file_bytes, num_bytes=size, huge=huge
        )
        methods["fio"].append(rate)

    turns: Sequence[Callable[[], None]] = [ours, theirs] if fio else [ours]
    for call in turns if turn % 2 == 0 else reversed(turns):
        call()


def _extras(
    bench: "DriveBench", block: int, size: int, huge: bool, rates: Rates, *, fio: bool
) -> None:
    """Beside a busy thread, through aiofiles, and the best that fio gets with io_uring."""
    from headrace.storage import LoadCase, busy_python

    from . import io_methods

    for kind in KINDS:
        case = LoadCase(kind=kind, block_bytes=block, depth=DEPTH)  # type: ignore[arg-type]
        methods = rates.setdefault((kind, block, DEPTH), {})
        with busy_python():
            rate = bench.run(case, size).bytes_per_second
        methods.setdefault("headrace, busy", []).append(rate)
        if fio:
            small = LoadCase(kind=kind, block_bytes=4 << 20, depth=8)  # type: ignore[arg-type]
            for name, shape in (("fio io_uring", case), ("fio io_uring 4M x8", small)):
                rate = io_methods.fio_rate(
                    bench.path, shape, file_bytes=bench.file_bytes, num_bytes=size,
                    engine="io_uring", huge=huge,
                )  # fmt: skip
                methods.setdefault(name, []).append(rate)
        if kind != "mixed":
            case = LoadCase(kind=kind, block_bytes=AIOFILES_BLOCK_BYTES, depth=DEPTH)  # type: ignore[arg-type]
            rate = io_methods.aiofiles_rate(
                bench.path, case, file_bytes=bench.file_bytes, num_bytes=size
            )
            methods.setdefault("aiofiles 4M", []).append(rate)


def _summary(
    key: tuple[Any, ...], methods: dict[str, list[float]], cpu: list[float] | None
) -> dict[str, Any]:
    kind, block, depth = key
    found: dict[str, Any] = {
        "kind": kind,
        "block_bytes": block,
        "depth": depth,
        "median_bytes_per_second": {name: median(one) for name, one in methods.items()},
        "rounds": methods,
    }
    if cpu:
        found["cpu_seconds_per_gb"] = median(cpu)
    for name, ratio, base in (
        ("ratio_to_fio", "headrace", "fio"),
        ("ratio_beside_busy_thread", "headrace, busy", "headrace"),
        ("aiofiles_ratio", "aiofiles 4M", "headrace"),
    ):
        if ratio in methods and base in methods:
            pairs = zip(methods[ratio], methods[base], strict=True)
            found[name] = median(one / other for one, other in pairs)
    return found


def _holds(result: dict[str, Any]) -> dict[str, bool]:
    """Which floors held; one for fio only where it is installed."""
    cases = result["cases"]
    fio = [one["ratio_to_fio"] for one in cases if "ratio_to_fio" in one]
    busy = [one["ratio_beside_busy_thread"] for one in cases if "ratio_beside_busy_thread" in one]
    cpu = [one["cpu_seconds_per_gb"] for one in cases if "cpu_seconds_per_gb" in one]
    holds = {"beside_busy_thread": min(busy) >= BUSY_FLOOR, "cpu": max(cpu) <= CPU_CEILING}
    if fio:
        holds["fio"] = min(fio) >= FIO_FLOOR
    if "device" in result:
        holds["device"] = bool(result["device"]["holds"])
    return holds


def _switch_interval() -> Any:
    """Let I/O threads have the GIL as quickly as in the engine's process, for a while."""
    import sys
    from contextlib import contextmanager

    @contextmanager
    def held() -> Iterator[None]:
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        try:
            yield
        finally:
            sys.setswitchinterval(before)

    return held()


def _show(result: dict[str, Any]) -> None:
    names = sorted({name for one in result["cases"] for name in one["median_bytes_per_second"]})
    rows = []
    for one in result["cases"]:
        rates = one["median_bytes_per_second"]
        rows.append([
            one["kind"], f"{one['block_bytes'] >> 20} MiB", str(one["depth"]),
            *(f"{rates[name] / 1e9:.2f}" if name in rates else "" for name in names),
            f"{one['ratio_to_fio']:.2f}" if "ratio_to_fio" in one else "",
            f"{one['cpu_seconds_per_gb']:.3f}" if "cpu_seconds_per_gb" in one else "",
        ])  # fmt: skip
    print_table(["", "block", "depth", *names, "x fio", "CPU s/GB"], rows, empty="")
    out = console()
    out.print(f"GB/s, medians of {result['rounds']} rounds of "
              f"{human_bytes(result['bytes_per_turn'])}; fio: {result['fio']}, huge pages: "
              f"{'yes' if result['fio_huge_pages'] else 'no'}")  # fmt: skip
    if "device" in result:
        out.print(result["device"]["sentence"])
    for name, held in result["holds"].items():
        out.print(f"{name}: {'holds' if held else 'MISSED'}")
