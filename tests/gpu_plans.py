"""On a machine without a GPU: are the plans of the GPU tests made, within the memory they give?

A plugin of pytest: `pytest -p gpu_plans -m gpu tests/engine`. A test ends where its first plan is
made, and passes; one whose plan is refused or goes wrong fails; what stops before that for want of
a GPU is skipped. What would make a run faster is not asked, for which five more plans are made each
time: `test_forecast.py` and `test_strategies.py` ask for boxes with a GPU.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from headrace.engine import run

FREE_BYTES = 100 * 2**30


class PlanMade(BaseException):
    """A run has its plan: it goes no further."""


class PlanFailed(BaseException):
    """A run has none, for whatever reason: no want of a GPU."""


def pytest_configure() -> None:
    """Let the planner see a GPU, and end every run once its plan is made."""
    torch.cuda.is_available = lambda: True
    torch.cuda.mem_get_info = lambda device=None: (FREE_BYTES, FREE_BYTES)
    torch.cuda.get_device_name = lambda device=None: "a GPU that is not there"
    vars(run)["plan_report"] = lambda plan, *arguments, **named: plan.to_dict()
    make_plan = run.plan_run

    def plan_only(*arguments: Any, **named: Any) -> Any:
        try:
            make_plan(*arguments, **named)
        except Exception as error:
            raise PlanFailed(f"{type(error).__name__}: {error}") from error
        raise PlanMade

    run.plan_run = plan_only


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Fixtures make runs too."""
    yield from _until_planned()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """The test itself."""
    yield from _until_planned()


def _until_planned() -> Iterator[None]:
    try:
        yield
    except PlanMade:
        return
    except Exception as error:
        pytest.skip(f"needs a GPU: {type(error).__name__}: {error}")
