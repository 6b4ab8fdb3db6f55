"""What a store is, written once when it is made: records, geometry, description. Pure codec."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .errors import Incompatible
from .layout import Extent, Layout, validate_layout
from .record import RecordSpec, TensorSpec
from .superblock import FORMAT_VERSION

FORMAT_NAME = "headrace-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The unchanging part of a store, as volume `volume_index` holds it."""

    uuid: UUID
    name: str
    volume_index: int
    layout: Layout
    description: Mapping[str, Any]


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON in UTF-8, one record a line."""
    layout = manifest.layout
    values = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "uuid": str(manifest.uuid),
        "name": manifest.name,
        "volume_index": manifest.volume_index,
        "file_bytes": layout.file_bytes,
        "deal": layout.deal,
        "stripe_bytes": layout.stripe_bytes,
        "block_bytes": layout.block_bytes,
        "body_bytes": layout.body_bytes,
        "keep_generations": layout.keep_generations,
        "description": dict(manifest.description),
    }
    head = json.dumps(values, indent=1)
    records = ",\n  ".join(
        json.dumps(_record_values(record, extents))
        for record, extents in zip(layout.records, layout.extents, strict=True)
    )
    return f'{head[:-2]},\n "records": [\n  {records}\n ]\n}}\n'.encode()


def decode_manifest(data: bytes, *, where: str) -> Manifest:
    """Read and judge a manifest; Incompatible for another format, version, or broken content."""
    try:
        values = json.loads(data)
    except ValueError as error:
        raise Incompatible(f"{where} is not a Headrace manifest: {error}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT_NAME:
        raise Incompatible(f"{where} is not a Headrace manifest")
    if values.get("version") != FORMAT_VERSION:
        raise Incompatible(
            f"{where} has format version {values.get('version')}; "
            f"this Headrace reads version {FORMAT_VERSION}"
        )
    try:
        return _read_values(values)
    except (KeyError, TypeError, ValueError) as error:
        raise Incompatible(f"{where}: the manifest is damaged: {error!r}") from error


def _record_values(record: RecordSpec, extents: tuple[Extent, ...]) -> dict[str, Any]:
    return {
        "name": record.name,
        "mutable": record.mutable,
        "tensors": [[one.name, one.dtype, one.shape] for one in record.tensors],
        "extents": [[one.first, one.starts, one.lengths] for one in extents],
    }


def _read_values(values: dict[str, Any]) -> Manifest:
    layout = Layout(
        records=tuple(_read_record(one) for one in values["records"]),
        extents=tuple(_read_extents(one["extents"]) for one in values["records"]),
        deal=tuple(values["deal"]),
        stripe_bytes=values["stripe_bytes"],
        block_bytes=values["block_bytes"],
        body_bytes=values["body_bytes"],
        file_bytes=tuple(values["file_bytes"]),
        keep_generations=values["keep_generations"],
    )
    validate_layout(layout)
    return Manifest(
        uuid=UUID(values["uuid"]),
        name=values["name"],
        volume_index=values["volume_index"],
        layout=layout,
        description=values["description"],
    )


def _read_record(values: dict[str, Any]) -> RecordSpec:
    tensors = tuple(
        TensorSpec(name=name, dtype=dtype, shape=tuple(shape))
        for name, dtype, shape in values["tensors"]
    )
    return RecordSpec(name=values["name"], tensors=tensors, mutable=values["mutable"])


def _read_extents(values: list[list[Any]]) -> tuple[Extent, ...]:
    return tuple(
        Extent(first=first, starts=tuple(starts), lengths=tuple(lengths))
        for first, starts, lengths in values
    )
