"""Every point that programs count on holds with the installed `openai` and a real daemon."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.service.auth import Tokens
from openai_checks import POINTS, World
from running_daemon import running_daemon
from tiny import make_tiny_llama


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home: Path = tmp_path_factory.mktemp("conformance")
    token = Tokens(home / "data" / "tokens.json").create("conformance")
    make_tiny_llama(home / "models" / "tiny", tied=True, seed=3, layers=2)
    with running_daemon(home / "data", home / "models", ()) as daemon:
        world = World(daemon.url, token)
        yield world
        world.client.close()


@pytest.mark.parametrize("point", POINTS)
def test_programs_may_count_on(world: World, point: str) -> None:
    POINTS[point](world)
