"""Who may do what: every route times every scope, in one table."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, serving
from headrace.service import gate
from headrace.service.auth import Tokens
from headrace.service.errors import ApiError
from headrace.service.routes import events
from headrace.service.scopes import SCOPES, Scope, holds, require, wanted

# What each route wants; "open" to everyone, also without a token.
TABLE: dict[str, Scope | str] = {
    "GET /livez": "open",
    "GET /readyz": "open",
    "GET /healthz": "open",
    "GET /metrics": "open",  # from this machine; from another the scope `metrics`
    "GET /status": "read",
    "GET /status/stream": "read",
    "GET /openapi.json": "read",
    "GET /": "read",
    "GET /new": "read",
    "GET /jobs/{job_id}": "read",
    "GET /login": "open",
    "GET /static/style.css": "open",
    "POST /logout": "metrics",
    "GET /v1/files": "read",
    "POST /v1/files": "submit",
    "GET /v1/files/{file_id}": "read",
    "DELETE /v1/files/{file_id}": "submit",
    "GET /v1/files/{file_id}/content": "read",
    "POST /v1/uploads": "submit",
    "POST /v1/uploads/{upload_id}/parts": "submit",
    "POST /v1/uploads/{upload_id}/complete": "submit",
    "POST /v1/uploads/{upload_id}/cancel": "submit",
    "GET /v1/fine_tuning/jobs": "read",
    "POST /v1/fine_tuning/jobs": "submit",
    "POST /v1/fine_tuning/plans": "submit",
    "GET /v1/fine_tuning/jobs/{job_id}": "read",
    "POST /v1/fine_tuning/jobs/{job_id}/cancel": "submit",
    "POST /v1/fine_tuning/jobs/{job_id}/pause": "submit",
    "POST /v1/fine_tuning/jobs/{job_id}/resume": "submit",
    "POST /v1/fine_tuning/jobs/{job_id}/free": "admin",
    "GET /v1/fine_tuning/jobs/{job_id}/events": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/events/stream": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/checkpoints": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/series": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/timeline": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/samples": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/row_losses": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/bundle": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/export": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/export/gguf": "read",
    "GET /v1/fine_tuning/jobs/{job_id}/export/reports": "read",
    "GET /v1/models": "read",
    "GET /v1/models/{name}": "read",
    "DELETE /v1/models/{name}": "admin",
}
PAGES = {"GET /", "GET /new", "GET /jobs/{job_id}", "GET /login", "GET /static/style.css"}
BEYOND_THE_DOCUMENT = {*PAGES, "POST /logout", "GET /openapi.json"}


@pytest.fixture(scope="module")
def client_and_tokens(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[httpx2.Client, dict[str, str]]]:
    data_dir = tmp_path_factory.mktemp("scopes")
    tokens = Tokens(data_dir / "tokens.json")
    made: dict[str, str] = {scope: tokens.create(scope, scope=scope) for scope in SCOPES}
    with serving(FakeDaemon(data_dir)) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client, {**made, "none": "", "wrong": "hr_wrong"}


def status_of(client: httpx2.Client, route: str, token: str) -> int:
    method, path = route.split(" ")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with client.stream(method, path.replace("{", "").replace("}", ""), headers=headers) as answer:
        return answer.status_code


def test_the_table_has_every_route_of_the_document(
    client_and_tokens: tuple[httpx2.Client, dict[str, str]],
) -> None:
    client, tokens = client_and_tokens
    headers = {"authorization": f"Bearer {tokens['read']}"}
    paths = client.get("/openapi.json", headers=headers).json()["paths"]
    routes = {f"{method.upper()} {path}" for path, item in paths.items() for method in item}
    assert routes == set(TABLE) - BEYOND_THE_DOCUMENT


@pytest.mark.parametrize("route", TABLE)
def test_a_request_is_let_in_by_its_scope(
    client_and_tokens: tuple[httpx2.Client, dict[str, str]], route: str
) -> None:
    client, tokens = client_and_tokens
    for name, token in tokens.items():
        status = status_of(client, route, token)
        wants = TABLE[route]
        if wants == "open":
            assert status not in (401, 403), name
        elif name in ("none", "wrong"):
            assert status in (401, 429), name
        else:
            allowed = holds(name, wants)  # type: ignore[arg-type]
            assert (status not in (401, 403, 429)) == allowed, f"{name}: {status}"


def test_scopes_hold_each_other_in_order() -> None:
    for i, granted in enumerate(SCOPES):
        assert [holds(granted, scope) for scope in SCOPES] == [j <= i for j in range(len(SCOPES))]


def test_what_no_rule_names_is_changed_by_an_admin_alone() -> None:
    assert wanted("PUT", "/v1/anything") == "admin" and wanted("GET", "/v1/anything") == "read"
    assert wanted("POST", "/v1/fine_tuning/jobs/a/b/cancel") == "admin"


def test_a_refusal_names_both_scopes_and_the_way_out() -> None:
    with pytest.raises(ApiError) as caught:
        require({"scope": "read"}, "POST", "/v1/files")
    error = caught.value
    assert (error.status, error.code) == (403, "insufficient_scope")
    assert "'read'" in error.message and "--scope submit" in (error.hint or "")
    require({}, "DELETE", "/v1/models/x")  # a token from before there were scopes


def test_metrics_from_another_machine_want_their_own_scope() -> None:
    require({"scope": "metrics"}, "GET", "/metrics")
    with pytest.raises(ApiError):
        require({"scope": "metrics"}, "GET", "/status")


def test_the_last_use_of_a_token_is_written_down(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    used, _ = tokens.create("used"), tokens.create("idle")
    entry = tokens.find(used)
    assert entry
    tokens.note_use(entry)
    tokens.keep_uses()
    assert set(Tokens(tmp_path / "tokens.json").last_used()) == {entry["sha256"]}
    assert used not in (tmp_path / "tokens-used.json").read_text()


def test_an_open_stream_ends_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LOOK_SECONDS", 0)
    monkeypatch.setattr(events, "PING_SECONDS", 0.1)
    tokens = Tokens(tmp_path / "tokens.json")
    kept, gone = tokens.create("kept"), tokens.create("gone")
    with calling(FakeDaemon(tmp_path)) as client:

        def watch(token: str) -> AbstractContextManager[httpx2.Response]:
            return client.stream(
                "GET", "/status/stream", headers={"authorization": f"Bearer {token}"}
            )

        with watch(kept) as other, watch(gone) as stream:
            lines, others = stream.iter_lines(), other.iter_lines()
            assert next(lines) and next(others)
            tokens.revoke(gone[:11])
            with pytest.raises(httpx2.RemoteProtocolError):
                for _ in lines:
                    pass
            assert any("ping" in line for line in others)
