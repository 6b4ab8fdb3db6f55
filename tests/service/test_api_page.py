import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastapi
import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.service import form_fields, templating
from headrace.service.attempts import AT_ONCE
from headrace.service.auth import Tokens
from headrace.service.sessions import COOKIE, PAGE_HEADER

Served = tuple[FakeDaemon, httpx2.Client]
HTML = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = FakeDaemon(tmp_path_factory.mktemp("page"))
    with calling(daemon) as client:
        yield daemon, client


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[FakeDaemon, httpx2.Client, str]]:
    """A daemon that wants a token, and the token."""
    daemon = FakeDaemon(tmp_path)
    token = Tokens(daemon.settings.tokens_path).create("t")
    with calling(daemon) as client:
        yield daemon, client, token


def log_in(client: httpx2.Client, token: str, **form: str) -> httpx2.Response:
    headers = {"origin": str(client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    return client.post("/login", data={"token": token, **form}, headers=headers)


def test_pages_show_what_users_wrote_as_text(served: Served) -> None:
    daemon, client = served
    wicked = "<script>alert(1)</script>"
    job = daemon.journal.add_job(some_job(model=wicked, suffix='"><img src=x onerror=alert(1)>'))
    daemon.journal.add_event(job.id, type="message", level="warn", message=f"about {wicked}")
    for path in ("/", f"/jobs/{job.id}"):
        text = client.get(path).text
        assert job.id in text and "alert(1)" in text
        assert wicked not in text and "<img" not in text
    daemon.journal.move(job.id, "cancelled")


def test_a_job_on_preferences_shows_how_many_are_preferred_as_chosen(served: Served) -> None:
    daemon, client = served
    plain = daemon.journal.add_job(some_job())
    assert "Preferred as chosen" not in client.get(f"/jobs/{plain.id}").text
    engine = {"reward_margin": 0.25, "reward_accuracy": 0.75}
    job = daemon.journal.add_job(some_job(method={"type": "dpo"}, engine=engine))
    text = client.get(f"/jobs/{job.id}").text
    assert "Preferred as chosen" in text and ">75 %<" in text and ">0.2500<" in text


@pytest.mark.parametrize("path", ["/", "/new", "/jobs/ftjob-none", "/static/style.css"])
def test_pages_may_load_from_here_alone_and_run_nothing_inline(served: Served, path: str) -> None:
    answer = served[1].get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "form-action 'self'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<[^>]*\s(on\w+|style)=|<style", answer.text)
    for address in re.findall(r'(?:src|href)="([^"]*)"', answer.text):
        assert address.startswith(("/", "#")) and not address.startswith("//"), address


def test_every_static_file_is_served_and_nothing_else(served: Served) -> None:
    client = served[1]
    folder = Path(__file__).parents[2] / "service" / "static"
    names = {path.name for path in folder.iterdir()}
    assert {"style.css", "page.js"} <= names
    for name in names:
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200, name
        etag = {"if-none-match": answer.headers["etag"]}
        assert client.get(f"/static/{name}", headers=etag).status_code in (200, 304)
    for name in (
        "none.js",
        "..%2fapp.py",
        "../app.py",
        ".",
        "%2e%2e%2fsettings.py",
        "style.css%00",
        "a" * 300 + ".css",  # longer than a file's name may be
    ):
        assert client.get(f"/static/{name}").status_code == 404, name


def test_a_page_that_is_not_there_says_so_in_words(served: Served) -> None:
    for path in ("/jobs/ftjob-none", "/?after=ftjob-none"):
        answer = served[1].get(path)
        assert answer.status_code == 404 and "text/html" in answer.headers["content-type"]
        assert "ftjob-none" in answer.text


def test_older_jobs_are_a_page_further(served: Served) -> None:
    daemon, client = served
    jobs = [daemon.journal.add_job(some_job(status="succeeded")) for _ in range(45)]
    seen: list[str] = []
    path = "/"
    while True:
        text = client.get(path).text
        seen += re.findall(r'href="/jobs/(ftjob-\w+)"', text.split('data-part="jobs"')[1])
        following = re.search(r'href="(/\?after=[^"]+)"', text)
        if following is None:
            break
        path = following[1]
    assert [job.id for job in reversed(jobs)] == seen[:45]


def test_without_tokens_nobody_logs_in(served: Served) -> None:
    answer = served[1].get("/login", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_browser_is_led_to_the_login_and_back(
    locked: tuple[FakeDaemon, httpx2.Client, str],
) -> None:
    _, client, token = locked
    away = client.get("/jobs/ftjob-1", headers=HTML)
    assert (away.status_code, away.headers["location"]) == (303, "/login?next=/jobs/ftjob-1")
    page = client.get(away.headers["location"])
    assert page.status_code == 200 and 'value="/jobs/ftjob-1"' in page.text
    back = log_in(client, token, next="/jobs/ftjob-1")
    assert (back.status_code, back.headers["location"]) == (303, "/jobs/ftjob-1")
    cookie = back.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=") and token not in cookie
    for word in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age="):
        assert word in cookie
    assert client.get("/", headers=HTML).status_code == 200
    assert client.get("/v1/models").status_code == 200, "the page's scripts call the API"


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "/v1/models", "x"]
)
def test_a_login_leads_to_our_pages_only(
    locked: tuple[FakeDaemon, httpx2.Client, str], target: str
) -> None:
    _, client, token = locked
    assert f'value="{target}"' not in client.get("/login", params={"next": target}).text
    assert log_in(client, token, next=target).headers["location"] == "/"


def test_programs_are_still_told_401(locked: tuple[FakeDaemon, httpx2.Client, str]) -> None:
    _, client, token = locked
    for path in ("/", "/new", "/v1/models", "/status"):
        assert client.get(path).status_code == 401
    wrong = {"authorization": "Bearer hr_wrong", **HTML}
    assert client.get("/", headers=wrong).status_code == 401
    good = {"authorization": f"Bearer {token}"}
    assert client.get("/", headers=good).status_code == 200


def test_a_wrong_token_is_refused_and_guessing_is_slowed_down(
    locked: tuple[FakeDaemon, httpx2.Client, str],
) -> None:
    _, client, token = locked
    answers = [log_in(client, f"hr_{i}") for i in range(AT_ONCE + 1)]
    assert [answer.status_code for answer in answers] == [401] * AT_ONCE + [429]
    assert "not known" in answers[0].text and "set-cookie" not in answers[0].headers
    assert log_in(client, token).status_code == 303, "a good token passes all the while"


def test_other_sites_cannot_log_a_browser_in(
    locked: tuple[FakeDaemon, httpx2.Client, str],
) -> None:
    _, client, token = locked
    for headers in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
        answer = client.post("/login", data={"token": token}, headers=headers)
        assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_the_cookie_alone_changes_nothing(
    locked: tuple[FakeDaemon, httpx2.Client, str],
) -> None:
    daemon, client, token = locked
    log_in(client, token)
    job = daemon.journal.add_job(some_job())
    path = f"/v1/fine_tuning/jobs/{job.id}/cancel"
    assert client.post(path).status_code == 403
    assert client.post(path, headers={"origin": "http://evil.example"}).status_code == 403
    ours = {PAGE_HEADER: "1", "origin": str(client.base_url).rstrip("/")}
    assert client.post(path, headers=ours).json()["status"] == "cancelled"


def test_signing_out_ends_the_session_for_good(
    locked: tuple[FakeDaemon, httpx2.Client, str],
) -> None:
    _, client, token = locked
    log_in(client, token)
    secret = client.cookies[COOKIE]
    ours = {PAGE_HEADER: "1", "origin": str(client.base_url).rstrip("/")}
    assert client.post("/logout", headers=ours).status_code == 204
    assert COOKIE not in client.cookies
    stolen = {"cookie": f"{COOKIE}={secret}"}
    assert client.get("/v1/models", headers=stolen).status_code == 401


def test_a_revoked_token_takes_its_sessions_along(
    locked: tuple[FakeDaemon, httpx2.Client, str],
) -> None:
    daemon, client, token = locked
    tokens = Tokens(daemon.settings.tokens_path)
    tokens.create("other")
    log_in(client, token)
    assert client.get("/v1/models").status_code == 200
    tokens.revoke(token[:11])
    assert client.get("/v1/models").status_code == 401


def test_the_first_page_does_nothing_that_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routes, templates and the fields of the form are made before the daemon says it is ready."""
    done: list[str] = []

    def note(owner: Any, name: str) -> None:
        does = getattr(owner, name)

        def noting(*args: Any, **options: Any) -> Any:
            done.append(name)
            return does(*args, **options)

        monkeypatch.setattr(owner, name, noting)

    note(fastapi.routing, "get_dependant")
    note(type(templating._environment()), "compile")
    note(form_fields, "_fields")
    templating._environment.cache_clear()
    form_fields.run_fields.cache_clear()
    with calling(FakeDaemon(tmp_path)) as client:
        assert {"get_dependant", "compile", "_fields"} <= set(done)
        done.clear()
        assert client.get("/").status_code == client.get("/new").status_code == 200
    assert done == []
