"""A multipart form, taken apart as it comes: the file's bytes pass through, nothing is spooled."""

from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from .errors import ApiError
from .filenames import MAX_CHARACTERS, parameters, safe_name

MAX_FIELD_BYTES = 4096  # of a form field that is not the file
MAX_FIELDS = 32


@dataclass(slots=True)
class _Part:
    """One part of the form: its headers as they come, then its bytes."""

    header_name: bytearray = field(default_factory=bytearray)
    header_value: bytearray = field(default_factory=bytearray)
    name: str = ""
    filename: str | None = None
    value: bytearray = field(default_factory=bytearray)


class Form:
    """Takes a multipart body apart: small fields into `fields`, the file into chunks.

    The file is the part named `file_field`.

    `feed` returns the bytes of the file that a chunk of the body held. ApiError (400) for a body
    that is not multipart or a form that is not ours.
    """

    def __init__(self, content_type: str, *, file_field: str = "file") -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or b"boundary" not in options:
            message = f"Send the file as multipart/form-data, in the part `{file_field}`."
            raise ApiError(400, message, code="invalid_body")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._file_field = file_field
        self._part = _Part()
        self._file_bytes = bytearray()
        self._ended = False
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes of the body; the bytes of the file among them."""
        self._file_bytes.clear()
        try:
            self._parser.write(chunk)
        except MultipartParseError as e:
            raise ApiError(400, f"The form is malformed: {e}.", code="invalid_body") from e
        return bytes(self._file_bytes)

    def finish(self) -> None:
        """The body is over; ApiError (400) when the form is not."""
        if not self._ended:
            raise ApiError(400, "The upload ended before the form did.", code="incomplete_body")
        if self.filename is None:
            name = self._file_field
            raise ApiError(400, f"Missing field {name!r}.", param=name, code="missing_field")

    def _begin(self) -> None:
        self._part = _Part()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._part.header_name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._part.header_value += data[start:end]

    def _header_end(self) -> None:
        part = self._part
        if part.header_name.lower() == b"content-disposition":
            options = parameters(bytes(part.header_value))
            part.name = options.get("name", "")
            part.filename = options.get("filename")
        part.header_name.clear()
        part.header_value.clear()

    def _headers_finished(self) -> None:
        if self._part.name != self._file_field:
            self._check_field(self._part.name)
            return
        if self.filename is not None:
            name = self._file_field
            raise ApiError(400, "One file at a time.", param=name, code="invalid_value")
        filename = safe_name(self._part.filename or "")
        if len(filename) > MAX_CHARACTERS:
            message = (
                f"The file's name has {len(filename)} characters; wanted {MAX_CHARACTERS} or fewer."
            )
            raise ApiError(400, message, param=self._file_field, code="invalid_value")
        self.filename = filename

    def _check_field(self, name: str) -> None:
        if name in self.fields:
            message = f"Field {name!r:.80} is given twice."
            raise ApiError(400, message, param=name[:80], code="invalid_value")
        if len(self.fields) == MAX_FIELDS:
            message = f"The form has more than {MAX_FIELDS} fields."
            raise ApiError(400, message, code="invalid_body")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part.name == self._file_field:
            self._file_bytes += data[start:end]
        elif len(self._part.value) + end - start > MAX_FIELD_BYTES:
            name = self._part.name
            raise ApiError(400, f"Field {name!r} is too long.", param=name, code="invalid_value")
        else:
            self._part.value += data[start:end]

    def _end_part(self) -> None:
        if self._part.name != self._file_field:
            self.fields[self._part.name] = self._part.value.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True
