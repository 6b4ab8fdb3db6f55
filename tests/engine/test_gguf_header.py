"""Attacks on GGUF files: each is refused with the place named, before anything large is read."""

import os
import struct
import sys
from pathlib import Path

import pytest

from headrace.engine.gguf_header import read_gguf_header
from headrace.engine.model_files import ModelError
from headrace.engine.source import read_model_spec
from tiny import make_tiny_llama
from tiny_gguf import write_gguf

UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9
F32, Q8_0 = 0, 8


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", UINT32, value)


def info(name: str, shape: tuple[int, ...], offset: int, kind: int = F32) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def head(*parts: bytes, num_tensors: int = 0, num_values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_values) + b"".join(parts)


def with_data(header: bytes, num_bytes: int) -> bytes:
    return header + bytes(-len(header) % 32 + num_bytes)


def file_of(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "attack.gguf"
    path.write_bytes(data)
    return path


ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "wants 4 bytes at 0"),
    "another format": (b"PK\x03\x04 and more", "is not a GGUF file"),
    "version 1": (head(version=1), "GGUF version 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "GGUF version 50331648"),
    "cut in the counts": (head()[:12], "the file is damaged or was not copied whole"),
    "more values than the file": (head(num_values=2**60), "wants 8 bytes at 24"),
    "more tensors than the file": (head(num_tensors=2**60), "wants 8 bytes at 24"),
    "endless key": (head(struct.pack("<Q", 2**62), num_values=1), f"wants {2**62} bytes at 32"),
    "endless array": (
        head(text("k"), struct.pack("<IIQ", ARRAY, UINT8, 2**62), num_values=1),
        f"wants {2**62} bytes",
    ),
    "endless list of strings": (
        head(text("k"), struct.pack("<IIQ", ARRAY, STRING, 2**62), num_values=1),
        "wants 8 bytes",
    ),
    "array in an array": (
        head(text("k"), struct.pack("<IIQ", ARRAY, ARRAY, 1), num_values=1),
        "an array of the unknown type 9",
    ),
    "unknown type": (head(text("k"), struct.pack("<I", 99), num_values=1), "unknown type 99"),
    "key twice": (head(number("k", 1), number("k", 2), num_values=2), "the key 'k' twice"),
    "key that is no text": (
        head(text(b"\xff\xfe"), struct.pack("<II", UINT32, 1), num_values=1),
        "is not UTF-8",
    ),
    "alignment 0": (head(number("general.alignment", 0), num_values=1), "general.alignment is 0"),
    "tensor twice": (
        with_data(head(info("t", (4,), 0), info("t", (4,), 32), num_tensors=2), 64),
        "lists tensor t twice",
    ),
    "overlap": (
        with_data(head(info("a", (16,), 0), info("b", (4,), 32), num_tensors=2), 64),
        "tensor b overlaps",
    ),
    "past the end": (
        with_data(head(info("t", (16,), 32), num_tensors=1), 64),
        "tensor t ends at byte",
    ),
    "offset past the end": (
        with_data(head(info("t", (4,), 2**63), num_tensors=1), 64),
        "tensor t ends at byte",
    ),
    "enormous shape": (
        with_data(head(info("t", (2**62, 2**62), 0), num_tensors=1), 64),
        "tensor t ends at byte",
    ),
    "too many dimensions": (head(info("t", (1,) * 9, 0), num_tensors=1), "has 9 dimensions"),
    "no dimensions": (head(info("t", (), 0), num_tensors=1), "has 0 dimensions"),
    "unknown block format": (
        with_data(head(info("t", (4,), 0, 200), num_tensors=1), 64),
        "unknown type 200",
    ),
    "rows of half a block": (
        with_data(head(info("t", (16,), 0, Q8_0), num_tensors=1), 64),
        "Q8_0 wants a multiple of 32",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_unsound_file_is_refused(tmp_path: Path, name: str) -> None:
    data, message = ATTACKS[name]
    path = file_of(tmp_path, data)
    with pytest.raises(ModelError, match=message) as refusal:
        read_gguf_header(path)
    assert str(path) in str(refusal.value)


def test_sound_header_is_read(tmp_path: Path) -> None:
    numbers = text("n") + struct.pack("<IIQ3i", ARRAY, 5, 3, 1, -2, 3)
    flag = text("f") + struct.pack("<IB", 7, 1)
    parts = (numbers, flag, text("s") + struct.pack("<I", STRING) + text("wört"))
    tensors = (info("b", (32, 2), 32, Q8_0), info("a", (3,), 0))
    data = with_data(head(*parts, *tensors, num_tensors=2, num_values=3), 32 + 68)
    header = read_gguf_header(file_of(tmp_path, data))
    assert {**header.metadata, "n": list(header.metadata["n"])} == {
        "n": [1, -2, 3],
        "f": True,
        "s": "wört",
    }
    got = {e.name: (e.dtype, e.shape, len(data) - e.start) for e in header.entries.values()}
    assert got == {"a": ("F32", (3,), 100), "b": ("Q8_0", (2, 32), 68)}


def test_digest_changes_with_metadata_and_length_alone(tmp_path: Path) -> None:
    def digest(value: int, data: bytes) -> str:
        start = with_data(head(number("k", value), num_values=1), 0)
        return read_gguf_header(file_of(tmp_path, start + data)).digest

    assert digest(1, b"aa") == digest(1, b"bb")
    assert len({digest(1, b"aa"), digest(2, b"aa"), digest(1, b"aaa")}) == 3


def test_metadata_past_the_cap_is_refused_without_being_read(tmp_path: Path) -> None:
    path = file_of(tmp_path, head(struct.pack("<Q", 150_000_000), num_values=1))
    os.truncate(path, 200_000_000)  # sparse: takes no space
    with pytest.raises(ModelError, match="past 100000000, where the file or what may be metadata"):
        read_gguf_header(path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.999])
def test_truncated_model_is_refused_at_read_of_the_spec(tmp_path: Path, share: float) -> None:
    model_dir = make_tiny_llama(tmp_path / "hf", tied=True, seed=0, layers=1)
    path = write_gguf(model_dir, tmp_path / "tiny.gguf")
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(ModelError, match="copy it again"):
        read_model_spec(path)


def test_missing_gguf_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)  # importing it raises ModuleNotFoundError
    path = file_of(tmp_path, with_data(head(info("t", (4,), 0), num_tensors=1), 16))
    with pytest.raises(ModelError, match=r"pip install 'headrace\[gguf\]'"):
        read_gguf_header(path)
