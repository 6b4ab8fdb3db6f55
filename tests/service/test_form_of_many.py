"""The form for a job beside a thousand models and files, weighed in work and not in seconds."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic.json_schema import GenerateJsonSchema
from sqlalchemy import Table, event, insert

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.service import tables
from headrace.service.journal import Journal
from headrace.service.page_view import SHOWN_CHOICES

MANY = 1000

Served = tuple[FakeDaemon, httpx2.Client]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """What one look at the form took."""

    text: str
    questions: int  # to the database
    schemas: int  # of requests, made anew

    @property
    def options(self) -> int:
        """Choices in all its lists."""
        return self.text.count("<option")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("form")
    for name in ("tiny", "Tiny-2", "other"):
        (home / "models" / name).mkdir(parents=True)
        (home / "models" / name / "config.json").write_text("{}")
    daemon = FakeDaemon(home / "data", models_dir=(home / "models",))
    with calling(daemon) as client:
        yield daemon, client


@pytest.fixture(scope="module")
def light(served: Served) -> Weight:
    """The form of an empty journal."""
    return weigh(*served)


@pytest.fixture(scope="module")
def many(served: Served, light: Weight) -> Served:
    """The same daemon with a thousand models and files."""
    daemon = served[0]
    job = daemon.journal.add_job(some_job(status="succeeded"))
    add(daemon.journal, tables.models, [
        {"name": f"ft:tiny:{i:03}", "path": "/", "job_id": job.id, "created_at": i}
        for i in range(MANY)
    ])  # fmt: skip
    add(daemon.journal, tables.files, [
        {"id": f"file-{i:03}", "filename": f"Rows_{i:03}.jsonl", "bytes": i, "created_at": i,
         "purpose": "fine-tune", "path": "/", "sha256": "", "status": "processed"}
        for i in range(MANY)
    ])  # fmt: skip
    return served


def add(journal: Journal, table: Table, rows: list[dict[str, Any]]) -> None:
    journal._database.write(lambda c: c.execute(insert(table), rows))


def weigh(daemon: FakeDaemon, client: httpx2.Client) -> Weight:
    asked, made = [], []
    generate, engine = GenerateJsonSchema.generate, daemon.journal._database._engine

    def note_question(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if threading.current_thread().name.startswith("AnyIO"):  # handlers, not the housekeeping
            asked.append(statement)

    def note_schema(*args: Any, **options: Any) -> Any:
        made.append(args)
        return generate(*args, **options)

    event.listen(engine, "before_cursor_execute", note_question)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(GenerateJsonSchema, "generate", note_schema)
            text = client.get("/new").text
    finally:
        event.remove(engine, "before_cursor_execute", note_question)
    return Weight(text=text, questions=len(asked), schemas=len(made))


def names(answer: httpx2.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one.get("filename") or one["id"] for one in answer.json()["data"]]


def test_the_form_does_no_more_work_beside_a_thousand_models_and_files(
    light: Weight, many: Served
) -> None:
    heavy = weigh(*many)
    assert heavy.options <= light.options + 3 * SHOWN_CHOICES
    assert len(heavy.text) < len(light.text) + 3 * (1000 + 100 * SHOWN_CHOICES)
    assert heavy.questions == light.questions == 2
    assert light.schemas == heavy.schemas == 0, "the form's fields are drawn once, at the start"


def test_the_newest_are_on_the_form_and_a_field_finds_the_others(
    light: Weight, many: Served
) -> None:
    text = weigh(*many).text
    for shown in ("tiny", "Tiny-2", "other", "ft:tiny:999", "ft:tiny:980", "file-999", "file-980"):
        assert f'<option value="{shown}">' in text, shown
    for hidden in ("ft:tiny:979", "file-979"):
        assert f'"{hidden}"' not in text
    assert text.count("data-find=") == 3 and "data-find=" not in light.text


def test_models_are_found_by_a_part_of_their_name(many: Served) -> None:
    client = many[1]
    models = "/v1/models"
    assert len(names(client.get(models))) == MANY + 3
    assert names(client.get(models, params={"contains": ":12"})) == [
        f"ft:tiny:{i}" for i in range(129, 119, -1)
    ]
    found = client.get(models, params={"contains": "TINY", "limit": 3})
    assert names(found) == ["tiny", "Tiny-2", "ft:tiny:999"], "those that begin so come first"
    assert found.json()["has_more"] is True
    assert client.get(models, params={"contains": "other"}).json()["has_more"] is False
    for nothing in ("100%", "ft_tiny", "%", "\\", "\0", "ü"):
        assert names(client.get(models, params={"contains": nothing})) == [], nothing
    assert len(names(client.get(models, params={"limit": 5}))) == 5
    refused = client.get(models, params={"contains": "x" * 201}).json()["error"]
    assert refused["param"] == "contains" and "200 or fewer characters" in refused["message"]


def test_the_model_of_just_that_name_comes_first_however_many_contain_it(tmp_path: Path) -> None:
    """Else a name that is a part of many newer ones could not be found by any text."""
    for i in range(30):
        (tmp_path / "models" / f"a-mill-{i:02}").mkdir(parents=True)
    (tmp_path / "more" / "Mill").mkdir(parents=True)
    for path in tmp_path.glob("mo*/*"):
        (path / "config.json").write_text("{}")
    roots = (tmp_path / "models", tmp_path / "more")
    daemon = FakeDaemon(tmp_path / "data", models_dir=roots)
    with calling(daemon) as client:
        job = daemon.journal.add_job(some_job(status="succeeded"))
        for name in ("Mühle", *(f"{start}mühle-{i}" for start in ("", "a-") for i in range(30))):
            daemon.journal.add_model(name=f"ft:{name}", path="/", job_id=job.id)
        asked: dict[str, Any] = {"contains": "mill", "limit": 2}
        assert names(client.get("/v1/models", params=asked)) == ["Mill", "a-mill-00"]
        asked = {"contains": "FT:MÜHLE", "limit": 3}
        found = names(client.get("/v1/models", params=asked))
        assert found == ["ft:Mühle", "ft:mühle-29", "ft:mühle-28"]


def test_files_are_found_by_a_part_of_their_name_or_their_id(many: Served) -> None:
    client = many[1]
    files = "/v1/files"
    asked: dict[str, Any] = {"contains": "rows_01", "limit": 4, "order": "asc"}
    first = client.get(files, params=asked)
    assert names(first) == [f"Rows_{i:03}.jsonl" for i in range(10, 14)]
    assert first.json()["has_more"] is True
    rest = client.get(files, params=asked | {"after": first.json()["last_id"], "limit": 10})
    assert names(rest) == [f"Rows_{i:03}.jsonl" for i in range(14, 20)]
    assert names(client.get(files, params={"contains": "file-007"})) == ["Rows_007.jsonl"]
    assert names(client.get(files, params={"contains": "rows-01"})) == [], "_ is no wildcard"
