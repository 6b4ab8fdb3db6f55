"""What the plan says today of the cases of `gpu_step`, by the rates that their rows were run with.

Nothing is run and no GPU is wanted: a change of the planner shows beside what was planned and
measured when the row was made. Rows without rates are left out.

    python -m bench.gpu_plan --results tests/bench/results/2026-11-30-gpu-step.jsonl
"""

import argparse
import sys
from itertools import groupby
from pathlib import Path

from bench.contest import read_rows
from bench.gpu_cases import CASES, DEVICE_BYTES, HOST_BYTES, PRODUCT, Case
from bench.gpu_step import case_spec, product_config
from headrace.engine import Box, make_plan
from headrace.engine.packing import settle_microbatch
from headrace.engine.plan import Plan
from headrace.engine.rates import Rates


def main() -> int:
    """One line a row that has rates: planned today, planned then, measured, and the placement."""
    arguments = _arguments()
    for row in read_rows(arguments.results):
        case, who, result = row["case"], row["who"], row.get("result") or {}
        if result.get("rates") and case in (arguments.case or CASES):
            rates = Rates.from_dict(result["rates"])
            plan = plan_case(CASES[case], who, rates, arguments)
            now, then = _seconds(plan, result["ways"][-1]), result["planned_seconds"]
            print(f"{case} {who}: planned {now:.3f} s, then {then:.3f}, measured ", end="")
            print(f"{result['step_seconds']:.3f}; {_homes(plan)}", flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="JSON lines of `gpu_step`")
    parser.add_argument("--case", action="append", choices=list(CASES), help="repeatable; all")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the product"
    )
    parser.set_defaults(microbatch_rows=None)
    return parser.parse_args()


def plan_case(case: Case, who: str, rates: Rates, arguments: argparse.Namespace) -> Plan:
    """The plan of a case on a box with these rates, and room on the drive for any."""
    config = product_config(case, PRODUCT[who], arguments)
    config = settle_microbatch(config, case.tokens_per_row)
    box = Box(
        device=case.device,
        device_bytes=int(0.96 * DEVICE_BYTES),  # nine tenths of what the card has
        host_bytes=HOST_BYTES,
        volumes={"/drive": 2**63},
        rates=rates,
    )
    spec = case_spec(case, config)
    return make_plan(spec, config, longest_row_tokens=case.tokens_per_row, box=box)


def _seconds(plan: Plan, way: str) -> float:
    """Of a step by the way that the row's last one took, or by the plan's own."""
    both = {str(name): seconds for name, seconds in plan.forecast.ways.items()}
    return both.get(way, plan.forecast.step.seconds)


def _homes(plan: Plan) -> str:
    """Runs of records on one tier, in their order."""
    runs = [(tier, len(list(same))) for tier, same in groupby(plan.tiers)]
    homes = ", ".join(f"{count} {tier}" for tier, count in runs)
    kept, updated = len(plan.keep_layers), len(plan.on_host)
    return (
        f"{homes}; {plan.num_slots} slots, {kept} layers kept, {updated} updated by the processor"
    )


if __name__ == "__main__":
    sys.exit(main())
