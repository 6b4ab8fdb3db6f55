"""A million rows of a gigabyte, checked: how fast, in how much memory, and is every row accounted?

Rows of chat are made of words that come as often as words do, with copies, rows without an answer
and rows that are too long at known places. One process judges their form, one counts tokens and
masks with a model's own tokenizer on one thread (of the first `--token-mb`, or of all); memory is
the peak above that after the imports. Then `headrace data check` runs twice, and once it gets
Ctrl-C. Prints one JSON object; the exit status is 1 when a rate, the memory, a count or the second
run is not what is promised. Rates go by the seconds that the process computed, so that a busy box
tells the same; those of the clock stand beside them.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.inputs import box
from bench.watch import memory, reset_peak

MB = 1_000_000
STRUCTURE_MB_PER_S, TOKENS_MB_PER_S = 20.0, 0.7
BYTES_A_ROW = 160  # indexes, lengths and places, and numpy's copies of them at the end
FIXED_BYTES = 100 * MB  # caches of the tokenizer, buffers
SECOND_RUN_SECONDS = 3.0  # that it computes: to start, and to hash a gigabyte
COPY, MUTE, LONG = 1_000, 1_003, 1_007  # one row in so many
MAX_SEQ_LEN, LONG_BYTES = 2048, 16_000
VOCABULARY = 20_000


@dataclass(frozen=True, slots=True)
class Made:
    """A file of rows, and what must be found in it."""

    path: Path
    rows: int
    copies: int
    mute: int
    long: int


def make_rows(path: Path, num_rows: int, num_bytes: int, *, seed: int = 0) -> Made:
    """Write so many rows of about so many bytes together."""
    words = list(_words(random.Random(seed)))
    draw = random.Random(seed + 1)
    weights = [1 / (rank + 2) for rank in range(VOCABULARY)]
    size = max(40, num_bytes // num_rows - 220)
    copies = mute = long = 0
    kept = ""
    pool: list[str] = []
    with path.open("w", encoding="utf-8") as file:
        for i in range(num_rows):
            is_mute, is_long = i % MUTE == MUTE - 1, i % LONG == LONG - 1
            is_copy = i % COPY == COPY - 1 and not (is_mute or is_long)
            if len(pool) < 4 * size + LONG_BYTES:
                pool += draw.choices(words, weights, k=100_000)
            wanted = LONG_BYTES if is_long else size - size // 3
            question, answer = _text(pool, size // 3), _text(pool, wanted)
            turns = [
                {"role": "system", "content": "Answer with care, and keep to what was asked."},
                {"role": "user", "content": f"{question} ({i})"},
                {"role": "assistant", "content": answer},
            ]
            if is_mute:
                turns.pop()
            line = json.dumps({"messages": turns}, ensure_ascii=False) + "\n"
            if is_copy:
                line = kept
            elif not (is_mute or is_long):
                kept = line
            copies, mute = copies + is_copy, mute + is_mute
            long += is_long and not is_mute
            file.write(line)
    return Made(path, num_rows, copies, mute, long)


def _words(draw: random.Random) -> Iterator[str]:
    parts = ["wa", "ter", "mill", "ra", "ce", "gate", "ri", "ver", "stone", "le", "ven", "é", "ing"]
    for _ in range(VOCABULARY):
        yield "".join(draw.choices(parts, k=draw.choice((1, 2, 2, 3, 3, 4))))


def _text(pool: list[str], num_bytes: int) -> str:
    taken: list[str] = []
    while num_bytes > 0:
        taken.append(pool.pop())
        num_bytes -= len(taken[-1]) + 1
    return " ".join(taken) + "."


def measure(look: Callable[[], dict[str, Any]], num_bytes: int, num_rows: int) -> dict[str, Any]:
    """What `look` found, its rates in MB/s, and the peak of memory above the present."""
    base = memory()["VmRSS"]
    reset_peak()
    clock, computed = time.monotonic(), time.process_time()
    found = look()
    clock, computed = time.monotonic() - clock, time.process_time() - computed
    peak = memory()["VmHWM"] - base
    return {
        "mb_per_computed_s": round(num_bytes / MB / computed, 2),
        "mb_per_clock_s": round(num_bytes / MB / clock, 2),
        "peak_mb": round(peak / MB, 1),
        "memory_held": peak <= BYTES_A_ROW * num_rows + FIXED_BYTES,
        **found,
    }


def structure(made: Made, answers: Any) -> None:
    """The form of all rows, in a process of its own."""
    from headrace.engine import check_rows

    def look() -> dict[str, Any]:
        found = check_rows(made.path, max_problems=None)
        counts = (found.num_rows, found.reasons, found.index.duplicates().count)
        wanted = (made.rows, {"no_assistant": made.mute}, made.copies)
        return {"rows": found.num_rows, "counts_held": counts == wanted}

    answers.put(measure(look, made.path.stat().st_size, made.rows))


def tokens(made: Made, model: Path, answers: Any) -> None:
    """Tokens and masks of all rows, in a process of its own on one thread."""
    from headrace.engine import (
        RowRules,
        check_dataset,
        load_tokenizer,
        prepare_model,
        read_model_spec,
    )

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(prepare_model(model, Path(folder)))
    tokenizer("warm")
    wanted = (made.rows, {"no_assistant": made.mute, "overlong": made.long}, made.copies)
    rules = RowRules(max_seq_len=MAX_SEQ_LEN, vocab_size=read_model_spec(model).vocab_size)

    def look() -> dict[str, Any]:
        found = check_dataset([made.path], tokenizer=tokenizer, rules=rules)
        refused = {code: tally.count for code, tally in found.problems.items()}
        return {
            "rows": found.rows,
            "tokens": found.tokens,
            "trained_tokens": found.trained_tokens,
            "counts_held": (found.rows, refused, found.duplicates) == wanted,
        }

    answers.put(measure(look, made.path.stat().st_size, made.rows))


def in_a_process(work: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    """What `work` puts into the queue that it gets last."""
    spawn = multiprocessing.get_context("spawn")
    answers: Any = spawn.Queue()
    process = spawn.Process(target=work, args=(*arguments, answers))
    process.start()
    found: dict[str, Any] = answers.get()
    process.join()
    return found


def command(made: Made, work_dir: Path) -> dict[str, Any]:
    """`headrace data check` run twice, and stopped once."""
    program = [sys.executable, "-m", "headrace.service", "data", "check", str(made.path)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(work_dir / "cache")}
    seconds, computed = [], []
    for _ in range(2):
        start, before = time.monotonic(), _of_children()
        done = subprocess.run([*program, "--json"], env=environment, capture_output=True, text=True)
        seconds.append(round(time.monotonic() - start, 2))
        computed.append(round(_of_children() - before, 2))
        found = json.loads(done.stdout)
    running = subprocess.Popen(
        [*program, "--json", "--fresh"], env=environment, stdout=subprocess.PIPE, text=True
    )
    time.sleep(seconds[0] / 2)
    stopped = time.monotonic()
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate()
    return {
        "first_s": seconds[0],
        "first_computed_s": computed[0],
        "second_s": seconds[1],
        "second_computed_s": computed[1],
        "second_from_cache": found["cached"],
        "stopped_after_s": round(time.monotonic() - stopped, 2),
        "stopped_status": running.returncode,
        "stopped_complete": json.loads(out)["complete"] if out else None,
    }


def _of_children() -> float:
    """Seconds that processes have computed that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Make, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf's or HF directory")
    parser.add_argument("--work-dir", type=Path, required=True, help="for the rows")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--mb", type=int, default=1_000, help="of all rows, 10^6 bytes")
    parser.add_argument("--token-mb", type=int, default=50, help="of which tokens are counted")
    parser.add_argument("--json", type=Path, help="also write the result there")
    arguments = parser.parse_args()
    os.environ |= {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    result = run(
        arguments.work_dir, arguments.model, rows=arguments.rows, num_bytes=arguments.mb * MB,
        token_bytes=min(arguments.mb, arguments.token_mb) * MB,
    )  # fmt: skip
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    return 0 if result["held"] else 1


def run(
    work_dir: Path, model: Path, *, rows: int, num_bytes: int, token_bytes: int
) -> dict[str, Any]:
    """Everything measured over rows that are made in `work_dir`; `held` says whether it is kept."""
    work_dir.mkdir(parents=True, exist_ok=True)
    made = make_rows(work_dir / "rows.jsonl", rows, num_bytes)
    some = made
    if token_bytes < num_bytes:
        some = make_rows(work_dir / "some.jsonl", rows * token_bytes // num_bytes, token_bytes)
    form = in_a_process(structure, made)
    counted = in_a_process(tokens, some, model)
    ran = command(made, work_dir)
    held = (
        form["mb_per_computed_s"] >= STRUCTURE_MB_PER_S
        and counted["mb_per_computed_s"] >= TOKENS_MB_PER_S
        and all(part[name] for part in (form, counted) for name in ("memory_held", "counts_held"))
        and ran["second_from_cache"] and ran["second_computed_s"] <= SECOND_RUN_SECONDS
        and ran["stopped_complete"] is False and ran["stopped_status"] == 130
    )  # fmt: skip
    return {
        "held": held,
        "rows": rows,
        "bytes": made.path.stat().st_size,
        "token_bytes": some.path.stat().st_size,
        "structure": form,
        "tokens": counted,
        "command": ran,
        "load_average": os.getloadavg()[0],
        "box": box(),
    }


if __name__ == "__main__":
    sys.exit(main())
