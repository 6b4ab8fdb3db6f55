"""Attacks on safetensors files and their index: each is refused, with the place named."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from headrace.engine.model_files import INDEX_FILE, ModelError
from headrace.engine.safetensors_header import read_checkpoint, read_header
from headrace.engine.source import read_model_spec
from tiny import make_tiny_llama

SECOND_SHARD = "model-00002-of-00002.safetensors"


def write_file(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with any header; `length` lies about the header's size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def tensor(start: int, stop: int, shape: list[Any] | None = None, dtype: str = "F32") -> Any:
    sizes = [(stop - start) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": sizes, "data_offsets": [start, stop]}


ATTACKS: dict[str, tuple[Any, int, str]] = {
    "hole": ({"a": tensor(0, 8), "b": tensor(12, 20)}, 20, "tensor b leaves a hole"),
    "overlap": ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12, "tensor b overlaps"),
    "same range": ({"a": tensor(0, 8), "b": tensor(0, 8)}, 8, "tensor b overlaps"),
    "late start": ({"a": tensor(4, 8)}, 8, "tensor a leaves a hole"),
    "past the end": ({"a": tensor(0, 800)}, 8, "tensor a ends at byte"),
    "bytes nobody names": ({"a": tensor(0, 8)}, 12, "where its last tensor ends"),
    "negative offset": ({"a": tensor(-4, 4)}, 8, r"data_offsets \[-4, 4\]"),
    "reversed range": ({"a": tensor(8, 0, [2])}, 8, r"wants 8 bytes.*hold -8"),
    "negative size": ({"a": tensor(0, 8, [-1, -2])}, 8, r"shape \[-1, -2\]"),
    "fractional size": ({"a": tensor(0, 8, [2.0])}, 8, r"shape \[2.0\]"),
    "shape of another size": ({"a": tensor(0, 8, [3])}, 8, "wants 12 bytes.*hold 8"),
    "enormous shape": ({"a": tensor(0, 8, [2**62, 2**62])}, 8, "wants .* bytes.*hold 8"),
    "unknown dtype": ({"a": tensor(0, 8, dtype="Q9")}, 8, "unknown dtype 'Q9'"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, 8, "unknown dtype None"),
    "three offsets": (
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}},
        8,
        r"wanted two numbers",
    ),
    "tensor that is no object": ({"a": 7}, 0, "tensor a is described by 7"),
    "list for a header": ([1, 2], 0, "holds a JSON list; wanted an object"),
    "header that is no JSON": (b"{'a'", 0, "its header is not valid JSON"),
    "header that is no text": (b"\xff\xfe{}", 0, "its header is not valid JSON"),
    "key twice": (
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        4,
        "the key 'a' appears twice",
    ),
    "key twice inside": (
        b'{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}',
        4,
        "the key 'dtype' appears twice",
    ),
    "nested without end": (b"[" * 100_000, 0, "its header is not valid JSON"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_unsound_header_is_refused(tmp_path: Path, name: str) -> None:
    header, data_bytes, message = ATTACKS[name]
    path = write_file(tmp_path / "attack.safetensors", header, bytes(data_bytes))
    with pytest.raises(ModelError, match=message) as refusal:
        read_header(path)
    assert str(path) in str(refusal.value)
    if name != "key twice":  # the library silently takes the last one
        with pytest.raises((SafetensorError, OSError)), safe_open(path, framework="pt"):
            pass


def test_sound_header_is_read(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": tensor(8, 12, [1, 1], "F32"),
        "a": tensor(0, 8, [4], "BF16"),
        "empty": tensor(12, 12, [0, 5]),
    }
    entries = read_header(write_file(tmp_path / "x", header, bytes(12)))
    start = (tmp_path / "x").stat().st_size - 12
    assert {
        name: (e.dtype, e.shape, e.start - start, e.num_bytes) for name, e in entries.items()
    } == {
        "a": ("BF16", (4,), 0, 8),
        "b": ("F32", (1, 1), 8, 4),
        "empty": ("F32", (0, 5), 12, 0),
    }


def test_header_longer_than_the_file_or_the_cap_is_refused_before_it_is_read(
    tmp_path: Path,
) -> None:
    path = write_file(tmp_path / "x", {}, length=2**63)
    with pytest.raises(ModelError, match="10 bytes; wanted at least 9223372036854775816"):
        read_header(path)
    with path.open("r+b") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)  # sparse: takes no space
    with pytest.raises(ModelError, match="claims 100000001 bytes; wanted at most 100000000"):
        read_header(path)
    path.write_bytes(b"\x01\x00")
    with pytest.raises(ModelError, match="2 bytes; wanted at least"):
        read_header(path)


@pytest.mark.parametrize("missing_bytes", [1, 4096, 10**6])
def test_truncated_file_is_refused_at_read_of_the_spec(tmp_path: Path, missing_bytes: int) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=0)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(max(100, path.stat().st_size - missing_bytes))
    with pytest.raises(ModelError, match="model.safetensors has .* bytes.*copy it again"):
        read_model_spec(tmp_path)


@pytest.mark.parametrize("dtype", ["I64", "F64", "I8"])
def test_weights_that_are_not_trainable_floats_are_refused(tmp_path: Path, dtype: str) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=0, layers=1)
    item_bytes = {"I64": 8, "F64": 8, "I8": 1}[dtype]
    header = {}
    start = 0
    for name, entry in read_checkpoint(tmp_path).items():
        stop = start + entry.num_bytes // 4 * item_bytes
        header[name] = tensor(start, stop, list(entry.shape), dtype)
        start = stop
    write_file(tmp_path / "model.safetensors", header, bytes(start))
    with pytest.raises(ModelError, match=f"is stored as {dtype}; wanted one of F32, F16, BF16"):
        read_model_spec(tmp_path)


def edit_map(change: Callable[[dict[str, str]], None]) -> Callable[[Path], None]:
    def attack(model_dir: Path) -> None:
        path = model_dir / INDEX_FILE
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    return attack


def point_at(shard: Any) -> Callable[[Path], None]:
    return edit_map(lambda weight_map: weight_map.update({"model.norm.weight": shard}))


def swap_shard(model_dir: Path) -> None:
    """Say that a tensor is in the shard that does not hold it."""
    held = json.loads((model_dir / INDEX_FILE).read_text())["weight_map"]["model.norm.weight"]
    point_at(next(p.name for p in model_dir.glob("*.safetensors") if p.name != held))(model_dir)


def move_shard_out(model_dir: Path) -> None:
    outside = model_dir.parent / "outside.safetensors"
    shutil.move(model_dir / SECOND_SHARD, outside)
    (model_dir / SECOND_SHARD).symlink_to(outside)


def remove_map(model_dir: Path) -> None:
    (model_dir / INDEX_FILE).write_text('{"weight_map": []}')


def remove_shard(model_dir: Path) -> None:
    (model_dir / SECOND_SHARD).unlink()


def cut_shard(model_dir: Path) -> None:
    os.truncate(model_dir / SECOND_SHARD, 5000)


INDEX_ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "parent directory": (point_at("../x.safetensors"), "is not the name of a file"),
    "absolute path": (point_at("/etc/x.safetensors"), "is not the name of a file"),
    "backslash": (point_at("..\\x.safetensors"), "is not the name of a file"),
    "null byte": (point_at("a\0.safetensors"), "is not the name of a file"),
    "another kind of file": (point_at("config.json"), "wanted a .safetensors file"),
    "number for a file": (point_at(7), "wanted a .safetensors file"),
    "file that is not there": (point_at("model-3.safetensors"), "model-3.safetensors is missing"),
    "other shard": (swap_shard, "says that tensor model.norm.weight is in .* does not hold it"),
    "tensor that no shard holds": (
        edit_map(lambda weight_map: weight_map.update({"ghost": SECOND_SHARD})),
        "says that tensor ghost is in",
    ),
    "link out of the directory": (move_shard_out, r"a link that leaves its directory.*cp -rL"),
    "no map": (remove_map, "has no weight_map"),
    "shard missing": (remove_shard, f"{SECOND_SHARD} is missing; copy the model again"),
    "shard cut short": (
        cut_shard,
        f"{SECOND_SHARD} has 5000 bytes, but tensor .* ends at byte",
    ),
}


@pytest.mark.parametrize("name", INDEX_ATTACKS)
def test_unsound_index_is_refused(tmp_path: Path, name: str) -> None:
    attack, message = INDEX_ATTACKS[name]
    model_dir = make_tiny_llama(tmp_path / "model", tied=True, seed=0, layers=1, num_shards=2)
    read_model_spec(model_dir)  # sound before
    attack(model_dir)
    with pytest.raises(ModelError, match=message):
        read_model_spec(model_dir)


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path, tied=True, seed=0, layers=1, num_shards=2)
    first, second = sorted(model_dir.glob("*.safetensors"))
    shutil.copy(first, second)
    with pytest.raises(ModelError, match="is both in model-00001.* and in model-00002"):
        read_model_spec(model_dir)


def test_config_may_be_a_link_within_the_directory_only(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "model", tied=True, seed=0, layers=1)
    (model_dir / "config.json").rename(model_dir / "real.json")
    (model_dir / "config.json").symlink_to("real.json")
    linked = tmp_path / "linked"
    linked.symlink_to(model_dir)  # the directory itself may be reached by a link
    assert read_model_spec(linked) == read_model_spec(model_dir)
    (model_dir / "real.json").rename(tmp_path / "real.json")
    (model_dir / "config.json").unlink()
    (model_dir / "config.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(ModelError, match="config.json is a link that leaves its directory"):
        read_model_spec(model_dir)
