"""The API keeps to its description, whatever it is sent: some hundreds of cases of `api_fuzz`."""

from pathlib import Path

from bench.api_fuzz import fuzz


def test_no_request_finds_an_answer_that_is_not_described(tmp_path: Path) -> None:
    result = fuzz(tmp_path, examples=4, damaged_cases=160, phases="fuzzing", seed=7)
    assert sum(part["cases"] for part in result.values()) > 300
    assert not any(part["failures"] for part in result.values()), result
