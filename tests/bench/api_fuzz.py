"""Thousands of requests that nobody would send: does the API keep to its description?

A real daemon with a scripted engine. schemathesis makes requests from the OpenAPI document, good
and bad, with ids that exist and with others; then come forms and JSON lines that were damaged by
hand. Prints one JSON object; the exit status is 1 when an answer was a 5xx or was not described.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from scripted_service import ROWS, scripted_service, write_house

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_schema_conformance", "response_headers_conformance")  # fmt: skip
ENDLESS = "/status/stream"
CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
BOUNDARY = "sluice"


def known_things(url: str) -> dict[str, str]:
    """A finished job, a file, an upload and a model, by the path parameter that names them."""
    with httpx2.Client(base_url=url, timeout=60) as client:
        file = client.post("/v1/files", data={"purpose": "fine-tune"}, files=ROWS).json()["id"]
        upload = {"bytes": 10, "filename": "a", "mime_type": "text/plain", "purpose": "fine-tune"}
        begun = client.post("/v1/uploads", json=upload).json()["id"]
        body = {"model": "tiny", "training_file": file}
        job = client.post("/v1/fine_tuning/jobs", json=body).json()["id"]
        while client.get(f"/v1/fine_tuning/jobs/{job}").json()["status"] != "succeeded":
            time.sleep(0.1)
    return {"job_id": job, "file_id": file, "upload_id": begun, "name": "tiny"}


def run_schemathesis(
    url: str, known: dict[str, str], *, examples: int, phases: str, seed: int
) -> dict[str, Any]:
    """One run; how many requests it made, and what it said of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "schemathesis.toml")
        lines = [f'"path.{name}" = "{value}"' for name, value in known.items()]
        config.write_text("[parameters]\n" + "\n".join(lines) + "\n")
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run",
                   f"{url}/openapi.json", "--checks", ",".join(CHECKS), "--phases", phases,
                   "--max-examples", str(examples), "--seed", str(seed), "--no-color",
                   "--exclude-path", ENDLESS, "--request-timeout", "30",
                   "--suppress-health-check", "all", "--continue-on-failure"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    counted = re.search(r"(\d+) generated", done.stdout)
    assert counted, done.stdout[-3000:] + done.stderr[-3000:]
    failures = "" if done.returncode == 0 else done.stdout
    return {"cases": int(counted[1]), "failures": failures}


def form_of(fields: dict[str, bytes]) -> bytes:
    """A form as a client sends it; the field `file` is a file."""
    parts = []
    for name, value in fields.items():
        file = b'; filename="rows.jsonl"' if name == "file" else b""
        head = b'content-disposition: form-data; name="' + name.encode() + b'"' + file
        parts.append(f"--{BOUNDARY}\r\n".encode() + head + b"\r\n\r\n" + value + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The bytes with some of them lost, changed, doubled or put elsewhere."""
    held = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at, size = dice.randrange(len(held) + 1), dice.randint(1, 40)
        match dice.randrange(5):
            case 0:
                del held[at : at + size]
            case 1:
                held[at:at] = held[max(0, at - size) : at]
            case 2:
                held[at:at] = dice.randbytes(size)
            case 3:
                held[at:at] = dice.choice([b"\r\n", b"--", b"\0", b'"', b"{", b"[[[[", b"\xff\xfe"])
            case _:
                held[at : at + 1] = bytes([dice.randrange(256)])
    return bytes(held)


def damaged_forms(count: int, dice: random.Random) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """Uploads of damaged forms: path, body, headers."""
    rows = (json.dumps(CHAT) + "\n").encode() * 3
    whole = form_of({"purpose": b"fine-tune", "file": rows})
    form = "multipart/form-data"
    ways = ["", "; boundary=", f"; boundary={BOUNDARY}", f'; boundary="{BOUNDARY}', "; x=y"]
    for i in range(count):
        kind = form + (ways[2] if i % 4 else dice.choice(ways))
        path = "/v1/files" if i % 3 else "/v1/uploads/upload_none/parts"
        yield path, damaged(whole, dice), {"content-type": kind}


def check_damaged(url: str, count: int, seed: int) -> dict[str, Any]:
    """Send damaged forms, and whole forms with damaged rows of which a plan is asked."""
    dice = random.Random(seed)
    statuses: dict[int, int] = {}
    wrong: list[str] = []

    def note(answer: httpx2.Response, what: bytes) -> None:
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        is_json = answer.headers["content-type"] == "application/json"
        if answer.status_code >= 500 or not is_json:
            wrong.append(f"{answer.status_code} {answer.text[:200]} for {what!r}")

    rows = (json.dumps(CHAT) + "\n").encode() * 3
    with httpx2.Client(base_url=url, timeout=60) as client:
        for path, body, headers in damaged_forms(count // 2, dice):
            note(client.post(path, content=body, headers=headers), body)
        for _ in range(count // 4):
            data = damaged(rows, dice)
            form = form_of({"purpose": b"fine-tune", "file": data})
            headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
            taken = client.post("/v1/files", content=form, headers=headers)
            note(taken, data)
            if taken.is_success:
                job = {"model": "tiny", "training_file": taken.json()["id"]}
                note(client.post("/v1/fine_tuning/plans", json=job), data)
    return {"cases": sum(statuses.values()), "statuses": statuses, "failures": wrong}


def fuzz(
    home: Path, *, examples: int, damaged_cases: int, phases: str, seed: int
) -> dict[str, Any]:
    """All of it against one daemon."""
    write_house(home, {"steps": 3, "step_seconds": 0, "checkpoint": 2})
    with scripted_service(home) as served:
        known = known_things(served.url)
        how: dict[str, Any] = {"examples": examples, "phases": phases, "seed": seed}
        result = {
            "ids that exist": run_schemathesis(served.url, known, **how),
            "any ids": run_schemathesis(served.url, {}, **how),
            "damaged forms and rows": check_damaged(served.url, damaged_cases, seed),
        }
        answer = httpx2.get(f"{served.url}/livez", timeout=30)
        assert answer.is_success and served.process.poll() is None
    return result


def main() -> int:
    """Fuzz and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=60, help="of each operation and phase")
    parser.add_argument("--damaged", type=int, default=2000)
    parser.add_argument("--phases", default="coverage,fuzzing,stateful")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the result there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        result = fuzz(Path(home), examples=options.examples, damaged_cases=options.damaged,
                      phases=options.phases, seed=options.seed)  # fmt: skip
    result = {"cases": sum(part["cases"] for part in result.values()), **result}
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(isinstance(part, dict) and part["failures"] for part in result.values()))


if __name__ == "__main__":
    sys.exit(main())
