"""A token is told once: it is in no log, event, error, database or process list."""

import os
import subprocess
import sys
from pathlib import Path

import httpx2

from headrace.service.auth import Tokens
from running_daemon import running_daemon
from tiny import make_tiny_llama


def command_lines() -> str:
    """What the process list shows of every process there is."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            found.append((entry / "cmdline").read_bytes().decode("utf-8", "replace"))
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError, PermissionError):
            continue
    return "\n".join(found)


def test_a_token_is_nowhere_to_be_found(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path / "models" / "tiny", tied=True, seed=3, layers=2)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 20)
    data = tmp_path / "data"
    token = Tokens(data / "tokens.json").create("secret", scope="submit")
    wrong = "hr_wrong-but-secret-all-the-same"
    answers, lists = [], []
    with running_daemon(data, tmp_path / "models", ["--log-level", "debug"]) as daemon:
        good = {"authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=daemon.url, timeout=60) as client:
            for headers in (good, {"api-key": wrong}, {"authorization": f"Bearer {wrong}"}):
                for method, path in (
                    ("GET", "/v1/files"), ("POST", "/v1/fine_tuning/jobs"), ("GET", "/nothing"),
                    ("DELETE", "/v1/models/x"), ("POST", "/v1/files"), ("GET", "/status"),
                ):  # fmt: skip
                    answers.append(client.request(method, path, headers=headers).text)
        submit = ["submit", "--model", "tiny", "--train", str(tmp_path / "rows.jsonl")]
        command = [sys.executable, "-m", "headrace.service", *submit, "--set", "max_steps=2"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HEADRACE_TOKEN": token,
        }
        with subprocess.Popen(
            [*command, "--watch", "--url", daemon.url],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            lists.append(command_lines())
            said, _ = process.communicate(timeout=120)
        lists.append(command_lines())
        assert process.returncode == 0, said
        answers.append(said)
    for secret in (token, wrong):
        assert all(secret not in text for text in (*answers, *lists))
        for file in data.rglob("*"):
            if file.is_file():
                assert secret.encode() not in file.read_bytes(), file
