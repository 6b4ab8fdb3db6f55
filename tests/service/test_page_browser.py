"""The page in a real browser: from an upload to the model, with nothing from elsewhere."""

import hashlib
import importlib.util
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from browser import DESKTOP, PHONE, WAIT_SECONDS, Browser, browser, needs_browser
from headrace.service.auth import Tokens
from headrace.service.client import Client
from headrace.service.formats import FORMATS, SHARES, shown, width
from headrace.service.sessions import COOKIE
from served_daemon import Served, served_daemon

pytestmark = needs_browser

SLOW = {"steps": 60, "step_seconds": 0.15, "checkpoint": 4}
FAST = {**SLOW, "step_seconds": 0.01, "tells": 30}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_daemon(tmp_path_factory.mktemp("page"), script=SLOW) as running:
        yield running


@pytest.fixture(scope="module")
def window(served: Served) -> Iterator[Browser]:
    with browser(served.url, served.home / "downloads") as opened:
        yield opened


@pytest.fixture(scope="module")
def finished(served: Served) -> str:
    """A job that succeeded; its id."""
    served.script(**FAST)
    with Client(served.url) as client:
        file = client.upload(served.rows)
        job_id = str(client.create_job({"model": "tiny", "training_file": file["id"]})["id"])
        end = time.monotonic() + WAIT_SECONDS
        while client.job(job_id)["status"] != "succeeded":
            assert time.monotonic() < end, client.job(job_id)
            time.sleep(0.05)
    served.script(**SLOW)
    return job_id


@pytest.fixture(autouse=True)
def quiet(window: Browser) -> Iterator[None]:
    """Whatever a test does: the console stays empty and every request goes to the daemon."""
    window.look(*DESKTOP, "light")
    yield
    assert window.complaints() == []
    assert window.strangers() == []


def curve(window: Browser) -> list[str]:
    """The points of the loss curve as it is drawn."""
    path = window.script("return document.querySelector('#loss .curve')?.getAttribute('d')")
    return str(path or "").strip("M").split("L")


def step(window: Browser) -> int:
    told = window.text("[data-v='engine'][data-as='steps']")
    return int(told.split()[0].replace(",", "")) if " of " in told else 0


def state(window: Browser) -> str:
    return window.text("[data-part='head'] .state")


def fill(window: Browser, field: str, value: str) -> None:
    """Type or choose a value as a person would."""
    window.script(
        "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        "field.dispatchEvent(new Event('input', {bubbles: true}))",
        field,
        value,
    )


def start_job(window: Browser, served: Served) -> str:
    """From the form to the page of the new job; its id."""
    window.open("/new")
    assert not window.find("#submit").is_enabled(), "the plan comes first"
    fill(window, "model", "tiny")
    window.find("#training_file-file").send_keys(str(served.rows))
    window.until(lambda: "is uploaded" in window.text("[data-upload] .upload-told"))
    window.until(lambda: "It fits" in window.text("#plan"))
    assert "Device memory" in window.text("#plan")
    window.click("#submit")
    window.until(lambda: "/jobs/ftjob-" in window.driver.current_url)
    return window.driver.current_url.rpartition("/")[2]


def test_from_an_upload_to_the_model(window: Browser, served: Served) -> None:
    window.open("/")
    assert "Nothing is training" in window.text("[data-part='now']")
    job_id = start_job(window, served)

    window.until(lambda: state(window) == "running")
    window.until(lambda: len(curve(window)) >= 3)
    seen = len(curve(window))
    window.until(lambda: len(curve(window)) > seen + 2)

    window.click("#act-pause")
    window.until(lambda: state(window) == "paused")
    paused_at = step(window)
    points = curve(window)
    figures = window.text(".figures")

    window.driver.refresh()
    window.until(lambda: len(curve(window)) == len(points))
    assert (state(window), step(window), curve(window)) == ("paused", paused_at, points)
    assert window.text(".figures") == figures

    served.script(**FAST)
    window.click("#act-resume")
    window.until(lambda: state(window) == "succeeded")
    window.until(lambda: len(curve(window)) == FAST["steps"])
    assert step(window) == FAST["steps"]
    assert window.text("#live") == "finished"
    served.script(**SLOW)

    window.click("#export")
    window.click("#csv")
    tar, table = (downloaded(window, served.home, kind) for kind in ("tar", "csv"))
    with tarfile.open(tar) as archive:
        assert archive.getnames() == [f"{job_id}/config.json"]
    assert len(table.read_text().splitlines()) == FAST["steps"] + 1


def downloaded(window: Browser, home: Path, kind: str) -> Path:
    """The downloaded file of that kind, once it is whole."""
    return window.until(lambda: next((home / "downloads").glob(f"*.{kind}"), None)) or Path()


def test_a_reload_in_mid_run_shows_the_same_run(window: Browser, served: Served) -> None:
    start_job(window, served)
    window.until(lambda: step(window) >= 4)
    events = window.text("#events")
    first = curve(window)[:1]
    window.driver.refresh()
    window.until(lambda: len(curve(window)) >= 3)
    assert step(window) >= 4 and state(window) == "running"
    assert curve(window)[0].split()[0] == first[0].split()[0], "the curve begins where it began"
    assert set(events.splitlines()) <= set(window.text("#events").splitlines())
    window.click("#act-cancel")
    window.click("#cancel-dialog [value='cancel']")
    window.until(lambda: state(window) == "cancelled")
    assert window.text("#live") == "finished"


def test_a_cancel_can_be_thought_better_of(window: Browser, served: Served) -> None:
    job_id = start_job(window, served)
    window.click("#act-cancel")
    window.click("#cancel-dialog [value='keep']")
    window.until(lambda: not window.find("#cancel-dialog").is_displayed())
    assert served.daemon.journal.job(job_id).status not in ("cancelled", "failed")  # type: ignore[union-attr]
    window.click("#act-cancel")
    window.click("#cancel-dialog [value='cancel']")
    window.until(lambda: state(window) == "cancelled")


def test_the_overview_changes_by_itself(window: Browser, served: Served) -> None:
    start_job(window, served)
    window.open("/")
    window.until(lambda: "tiny" in window.text("[data-part='now']"))
    told = "[data-part='now'] .num[data-as='steps']"
    before = window.text(told)
    window.until(lambda: window.text(told) != before)
    window.until(lambda: window.find("#spark svg"))
    running = served.daemon.journal.jobs(status=["running"])[0]
    window.script(
        "return fetch(arguments[0], {method: 'POST', headers: {'x-headrace-page': '1'}})",
        f"/v1/fine_tuning/jobs/{running.id}/cancel",
    )
    window.until(lambda: "Nothing is training" in window.text("[data-part='now']"))
    window.until(lambda: "cancelled" in window.text("[data-part='jobs'] tbody tr"))


def test_a_mistake_is_told_at_its_field(window: Browser, served: Served) -> None:
    window.open("/new")
    fill(window, "model", "tiny")
    window.find("#training_file-file").send_keys(str(served.rows))
    window.until(lambda: "It fits" in window.text("#plan"))
    fill(window, "f-batch_size", "many")
    field = "[data-field$='batch_size']"
    window.until(lambda: "batch_size" in window.text(f"{field} .wrong"))
    assert window.find("#f-batch_size").get_attribute("aria-invalid") == "true"
    assert not window.find("#submit").is_enabled()
    fill(window, "f-batch_size", "4")
    window.until(lambda: window.find("#submit").is_enabled())
    # The refusal is an answer of the API, which a browser notes as an error of its own.
    assert all("400" in said for said in window.complaints())


def test_one_of_many_models_is_found_by_a_part_of_its_name(
    window: Browser, served: Served, finished: str
) -> None:
    """By keyboard alone: type, Enter into the list, arrows; what was chosen stays chosen."""
    journal = served.daemon.journal
    for i in range(30):
        journal.add_model(name=f"ft:mill-{i:02}", path="/", job_id=finished)
    try:
        window.open("/new")
        options = "return [...document.querySelectorAll('#model option')].map((one) => one.value)"
        assert "ft:mill-04" not in window.script(options)
        assert {"tiny", "ft:mill-29"} <= set(window.script(options))
        window.find("#model-search").send_keys("MILL-04")
        window.until(lambda: window.text("#model-found").startswith("One has"))
        assert window.script(options) == ["", "ft:mill-04"]
        window.find("#model-search").send_keys(Keys.ENTER)
        focus = "return document.activeElement.id"
        window.until(lambda: window.script(focus) == "model")
        window.find("#model").send_keys(Keys.ARROW_DOWN)
        window.until(lambda: window.script("return model.value") == "ft:mill-04")
        window.find("#model-search").clear()
        window.find("#model-search").send_keys("none such")
        window.until(lambda: window.text("#model-found").startswith("Nothing here"))
        assert window.script(options) == ["", "ft:mill-04"], "the chosen one stays"
        window.find("#model-search").send_keys(Keys.CONTROL, "a", Keys.DELETE)
        window.until(lambda: window.text("#model-found").startswith("Not all are"))
        assert {"tiny", "ft:mill-29", "ft:mill-04"} <= set(window.script(options))
        assert window.script("return model.value") == "ft:mill-04"
        assert window.driver.current_url.endswith("/new"), "Enter did not send the form"
        assert faults_of_axe(window) == []
    finally:
        for i in range(30):
            journal.remove_model(f"ft:mill-{i:02}")


def test_a_large_file_goes_up_in_parts(window: Browser, served: Served) -> None:
    large = served.home / "large.jsonl"
    row = served.rows.read_bytes().splitlines(keepends=True)[0]
    large.write_bytes(row * (40_000_000 // len(row)))
    window.open("/new")
    window.find("#training_file-file").send_keys(str(large))
    window.until(lambda: "is uploaded" in window.text("[data-upload] .upload-told"), 60)
    window.until(lambda: window.find("#training_file").get_attribute("value"))
    name = str(window.find("#training_file").get_attribute("value"))
    record = served.daemon.journal.file(name)
    assert record and record.filename == "large.jsonl"
    assert record.sha256 == hashlib.sha256(large.read_bytes()).hexdigest()
    assert [url for url in window.asked() if url.endswith("/parts")]


def test_the_curve_is_read_and_zoomed_with_keys(window: Browser, finished: str) -> None:
    window.open(f"/jobs/{finished}")
    window.until(lambda: len(curve(window)) == FAST["steps"])
    press(window, "ArrowRight")
    window.until(lambda: window.text("#readout").startswith("Step 1: training 4.0000"))
    press(window, "+")
    window.until(lambda: len(curve(window)) < FAST["steps"])
    press(window, "0")
    window.until(lambda: len(curve(window)) == FAST["steps"])
    window.click("#chart-log")
    window.until(lambda: window.find("#chart-log").get_attribute("aria-pressed") == "true")


def press(window: Browser, key: str) -> None:
    window.script(
        "document.querySelector('#loss svg').dispatchEvent("
        "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))",
        key,
    )


def test_the_theme_is_the_systems_until_it_is_chosen_and_then_stays(window: Browser) -> None:
    def dark() -> bool:
        ground = window.script("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in str(ground)[4:-1].split(",")) < 300

    window.open("/")
    assert not dark()
    window.look(*DESKTOP, "dark")
    assert dark()
    window.click("#theme")
    assert not dark()
    window.open("/new")
    assert not dark()
    window.script("localStorage.clear()")


def test_numbers_are_told_by_the_script_as_by_the_server(window: Browser) -> None:
    small = [0, 0.0021, 0.125, 0.254, 0.9951, 1, 2.5, 9.995, 12.34, 59.49, 59.5, 99.95, 125, 999.5]
    numbers = [*small, 1234.5, 3599.6, 8040, 172_799, 300_000, 1.61e9, 41.25e9, 9.9996e11, 2.5e15]
    objects: dict[str, list[Any]] = {
        "steps": [{"step": 3, "total_steps": 4000}, {"total_steps": 7}, {}],
        "used": [{"total_bytes": 10**12, "free_bytes": 123_456_789}],
        "traffic": [{"traffic": None, "calibration": None}],
        "text": ["as it is"],
    }
    window.open("/")
    asked = [(form, value) for form in FORMATS for value in [*objects.get(form, numbers), None]]
    told = window.script(in_page("shown"), asked)
    assert told == [shown(value, form) for form, value in asked]
    asked = [(form, value) for form in SHARES for value in [*objects.get(form, numbers), None]]
    assert window.script(in_page("width"), asked) == [width(value, form) for form, value in asked]


def test_a_step_that_is_told_again_replaces_the_one_in_the_curve(window: Browser) -> None:
    code = """
    const {Series} = await import('/static/series.js');
    const told = {every: 1, steps: {step: [1, 2, 4], train_loss: [4, 3, null]},
                  evaluations: {step: [], valid_loss: []}};
    const series = new Series(told, {steps: ['train_loss'], evaluations: ['valid_loss']});
    for (const [step, train_loss] of [[3, 2.5], [4, 2], [3, 2.25], [2, NaN], [5, 1]])
      series.add('steps', {step, train_loss});
    const points = [...series.points.train_loss];
    for (let step = 6; !series.isFull; step += 1) series.add('steps', {step, train_loss: 1});
    return [points, series.points.train_loss.length];
    """
    window.open("/")
    points, longest = window.script(f"return (async () => {{{code}}})()")
    assert points == [[1, 4], [2, 3], [3, 2.25], [4, 2], [5, 1]]
    assert longest < 5000, "then it is fetched again, thinned"


def in_page(function: str) -> str:
    return (
        "const asked = arguments[0]; return import('/static/format.js').then((m) => "
        f"asked.map(([form, value]) => m.{function}(value, form)))"
    )


def test_no_page_is_wider_than_a_phone(window: Browser, finished: str) -> None:
    window.look(*PHONE, "light")
    for path in ("/", f"/jobs/{finished}", "/new"):
        window.open(path)
        assert window.script("return document.documentElement.scrollWidth") == PHONE[0], path


@pytest.mark.parametrize(
    ("size", "theme"), [(PHONE, "dark"), (DESKTOP, "light")], ids=["phone-dark", "desktop-light"]
)
def test_axe_finds_no_fault(
    window: Browser, finished: str, size: tuple[int, int], theme: Any
) -> None:
    window.look(*size, theme)
    for path in ("/", f"/jobs/{finished}", "/new", "/jobs/ftjob-none"):
        window.open(path)
        window.script("for (const one of document.querySelectorAll('details')) one.open = true")
        faults = faults_of_axe(window)
        assert not faults, f"{path}: {json.dumps(faults, indent=1)}"
    # The page that is missing is an answer that a browser notes.
    assert [said for said in window.complaints() if "404" not in said] == []


def faults_of_axe(window: Browser) -> list[Any]:
    """What axe-core holds against the page that is shown: rule, impact, elements."""
    package = importlib.util.find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("axe-playwright-python is not installed; `make setup` installs it")
    window.script(Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    found = window.script("return axe.run(document).then((told) => told.violations)")
    return [
        (fault["id"], fault["impact"], [node["html"][:200] for node in fault["nodes"]])
        for fault in found
    ]


def test_with_a_token_the_browser_logs_in_and_out(window: Browser, served: Served) -> None:
    tokens = Tokens(served.daemon.settings.tokens_path)
    token = tokens.create("browser")
    try:
        window.open("/new")
        window.find("#token").send_keys("hr_wrong\n")
        assert "not known" in window.text(".wrong")
        window.find("#token").send_keys(f"{token}\n")
        window.until(lambda: window.text("h1") == "New job")
        assert COOKIE not in str(window.script("return document.cookie"))
        job_id = start_job(window, served)
        window.until(lambda: step(window) >= 2)
        window.click("#act-cancel")
        window.click("#cancel-dialog [value='cancel']")
        window.until(lambda: state(window) == "cancelled")
        window.click("#sign-out")
        window.until(lambda: window.text("h1") == "Sign in")
        window.open(f"/jobs/{job_id}")
        assert window.text("h1") == "Sign in"
    finally:
        tokens.revoke(token[:11])
    assert [said for said in window.complaints() if "401" not in said] == []
