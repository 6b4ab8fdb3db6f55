"""Whole training steps on one GPU: the product beside plain PyTorch, in one run, as a ratio.

Llama-8B layer shape, vocabulary 32 k, sequences of 1024 random tokens, full fine-tuning, fp32
master weights and AdamW on both sides. Each case runs its peers and the product one after the
other in processes of their own and appends one JSON line to --results; a case that is there
already is left alone, so that a run can go on where it stopped.

    python -m bench.gpu_step --results tests/bench/results/gpu_step.jsonl --case 12x16k
"""

import argparse
import gc
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import Tensor

from headrace.engine import TrainConfig, bench_step, shape_spec

TOKENS_PER_ROW = 1024
SHAPE = "llama-8b-vocab-32k"
CHUNK_TOKENS = 4096
WARM_STEPS, TIMED_STEPS = 2, 4

# layers, rows a step, and who runs: a peer's name, or the product's settings.
CASES: dict[str, dict[str, Any]] = {
    "12x16k": {"layers": 12, "rows": 16, "peers": ["pytorch", "pytorch-compiled"]},
    "24x16k": {"layers": 24, "rows": 16, "peers": ["pytorch", "pytorch-compiled"]},
    "24x64k": {"layers": 24, "rows": 64, "peers": ["pytorch-checkpointing"]},
}
PRODUCT: dict[str, dict[str, Any]] = {
    "headrace": {"deterministic": False, "max_grad_norm": 1e9},
    "headrace-deterministic": {"deterministic": True, "max_grad_norm": 1e9},
    "headrace-clipping": {"deterministic": False, "max_grad_norm": 1.0},
}


def main() -> int:
    """Run the cases that are not in the results yet; print each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES), help="repeatable; all")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--microbatch-rows", type=int, default=16, help="the product's")
    parser.add_argument("--who", action="append", help="repeatable: contenders; all by default")
    parser.add_argument("--steps", type=int, default=TIMED_STEPS, help="timed steps of each")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "WHO"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        case, who = arguments.child
        found = measure(CASES[case], who, arguments.microbatch_rows, arguments.steps)
        print(json.dumps(found))
        return 0
    done = set()
    if arguments.results.exists():
        lines = arguments.results.read_text().splitlines()
        done = {json.loads(line)["case"] for line in lines}
    for case in arguments.case or CASES:
        if case not in done:
            row = run_case(case, arguments.microbatch_rows, arguments.steps, arguments.who)
            arguments.results.parent.mkdir(parents=True, exist_ok=True)
            with arguments.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(summary(row), flush=True)
    return 0


def run_case(
    case: str, microbatch_rows: int, steps: int, chosen: list[str] | None
) -> dict[str, Any]:
    """Peers and product of a case, each in a fresh process, so that none inherits memory."""
    found = {}
    for who in chosen or (*CASES[case]["peers"], *PRODUCT):
        command = [sys.executable, "-m", "bench.gpu_step", "--results", "-", "--child", case, who]
        command += ["--microbatch-rows", str(microbatch_rows), "--steps", str(steps)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        last = done.stdout.decode().strip().splitlines()[-1:]
        found[who] = json.loads(last[0]) if done.returncode == 0 else {"failed": done.returncode}
    return {
        "case": case,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        **{key: value for key, value in CASES[case].items() if key != "peers"},
        "results": found,
    }


def summary(row: dict[str, Any]) -> str:
    """A case in a few lines: TFLOPS each, and the product's ratio to each peer."""
    results = row["results"]
    lines = [f"{row['case']}:"]
    best = results.get("headrace", {}).get("tflops")
    for who, result in results.items():
        if "failed" in result:
            lines.append(f"  {who}: failed with exit code {result['failed']}")
            continue
        ratio = f", headrace is {best / result['tflops']:.2f} x" if best else ""
        lines.append(
            f"  {who}: {result['step_seconds']:.3f} s/step, {result['tflops']:.0f} model TFLOPS, "
            f"peak {result['peak_gib']:.1f} GiB{ratio}"
        )
    return "\n".join(lines)


def measure(case: dict[str, Any], who: str, microbatch_rows: int, steps: int) -> dict[str, Any]:
    """Time one contender: seconds a step (median), model TFLOPS by 6 N T / time, peak memory."""
    if who in PRODUCT:
        result = _measure_product(case, PRODUCT[who], microbatch_rows, steps)
    else:
        result = _measure_pytorch(case, who, steps)
    tokens = case["rows"] * TOKENS_PER_ROW
    flops = 6 * result["num_params"] * tokens / result["step_seconds"]
    return {
        **result,
        "tflops": flops / 1e12,
        "tokens_per_second": tokens / result["step_seconds"],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def _measure_product(
    case: dict[str, Any], settings: dict[str, Any], microbatch_rows: int, steps: int
) -> dict[str, Any]:
    config = TrainConfig(
        model="random",
        dataset="random",
        device="cuda",
        compute_dtype="bfloat16",
        compile="static",
        batch_rows=case["rows"],
        microbatch_rows=min(microbatch_rows, case["rows"]),
        loss_chunk_tokens=CHUNK_TOKENS,
        commit_every_steps=10_000,
        **settings,
    )
    spec = shape_spec(SHAPE, case["layers"])
    found = bench_step(
        config,
        spec=spec,
        tokens_per_row=TOKENS_PER_ROW,
        slots=(3,),
        num_steps=steps,
        commit=False,
    )
    run = found["runs"]["3"]
    return {
        "num_params": found["num_params"],
        "step_seconds": run["step_seconds"],
        "all_step_seconds": run["all_step_seconds"],
        "microbatch_rows": config.microbatch_rows,
        "plan": run["plan"],
        "link_bytes": run["link_bytes"],
        "loss": run["loss"],
    }


def _measure_pytorch(case: dict[str, Any], who: str, steps: int) -> dict[str, Any]:
    """fp32 weights, bf16 autocast, fused AdamW, microbatches of 4 rows; the loss is chunked as
    the product's is, so that both hold as few logits."""
    config = transformers.LlamaConfig(**dict(shape_spec(SHAPE, case["layers"]).config))
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config)
    model.train()
    if who == "pytorch-checkpointing":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    body: Callable[..., Any] = model.model
    if who == "pytorch-compiled":
        body = torch.compile(model.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    seconds = []
    for _ in range(WARM_STEPS + steps):
        shape = (case["rows"], TOKENS_PER_ROW)
        ids = torch.randint(0, config.vocab_size, shape, device="cuda")
        torch.cuda.synchronize()
        started = perf_counter()
        for rows in torch.split(ids, 4):
            _accumulate(model, body, rows, 1 / ids.numel())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(perf_counter() - started)
    gc.collect()
    return {
        "num_params": sum(p.numel() for p in model.parameters()),
        "step_seconds": median(seconds[WARM_STEPS:]),
        "all_step_seconds": seconds,
        "microbatch_rows": 4,
    }


def _accumulate(model: Any, body: Callable[..., Any], ids: Tensor, scale: float) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state
        leaf = hidden.detach().requires_grad_()
        flat = leaf[:, :-1].flatten(0, 1)
        targets = ids[:, 1:].flatten()
        for part, wanted in zip(
            torch.split(flat, CHUNK_TOKENS), torch.split(targets, CHUNK_TOKENS), strict=True
        ):
            logits = model.lm_head(part).float()
            loss = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum") * scale
            torch.autograd.backward(loss, retain_graph=True)
    torch.autograd.backward(hidden, leaf.grad)


if __name__ == "__main__":
    sys.exit(main())
