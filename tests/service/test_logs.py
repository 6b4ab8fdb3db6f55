import json
import subprocess
import sys
import textwrap


def logged(code: str) -> list[dict[str, object]]:
    """The lines that a process logs to its standard error, which is no terminal."""
    return [json.loads(line) for line in lines_of(code)]


def lines_of(code: str, options: str = "") -> list[str]:
    start = f"""
        import logging, sys
        from headrace.service import logs
        logs.configure({options})
        log = logs.get_logger("headrace.test")
    """
    script = textwrap.dedent(start) + textwrap.dedent(code)
    source = next(path for path in sys.path if path.endswith(".src"))
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": source}, capture_output=True, check=True
    )
    assert not done.stdout
    return done.stderr.decode().splitlines()


def test_every_line_is_json_with_its_fields() -> None:
    first, second = logged("""
        log.info("made a job", job_id="ftjob-1")
        logging.getLogger("other").warning("a %s of %d", "list", 3)
        log.debug("unheard")
        logging.getLogger("alembic").info("unheard")
    """)
    assert (first["event"], first["job_id"], first["level"]) == ("made a job", "ftjob-1", "info")
    assert (second["event"], second["logger"]) == ("a list of 3", "other")
    assert "timestamp" in first and "timestamp" in second


def test_a_traceback_shows_no_local_variables() -> None:
    (line,) = logged("""
        def fail(token):
            raise ValueError("no")
        try:
            fail("hr_" + "secret")
        except ValueError:
            log.exception("it failed", path="/x")
    """)
    assert "ValueError: no" in str(line["exception"]) and line["path"] == "/x"
    assert "hr_secret" not in json.dumps(line)


def test_who_asks_for_text_reads_plain_words_without_colours() -> None:
    (line,) = lines_of('log.info("made a job", job_id="ftjob-1")', "as_text=True")
    assert "made a job" in line and "job_id=ftjob-1" in line
    assert "{" not in line and "\x1b" not in line
