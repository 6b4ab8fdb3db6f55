"""What bodies are made of: models that say what they take, and refuse what they do not know."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
)
from pydantic import model_validator as validator
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import custom_error_schema, float_schema, int_schema

from .errors import did_you_mean, printable

MANY = (1 << 31) - 1
OPEN = ({"const": "auto"}, {"type": "null"})  # a field is left open by either, or by its absence
REFUSED = "refused"  # the type of the errors that `refuse` makes


def refuse(text: str, *, field: str = "", code: str = "invalid_value") -> PydanticCustomError:
    """What a validator raises. `{param}` in the text becomes the path of the field: that of the
    value which is validated, and `field` within it."""
    return PydanticCustomError(
        REFUSED, "{text}", {"text": printable(text), "field": printable(field), "code": code}
    )


def _check_text(text: str) -> str:
    """Refuse half a surrogate pair: JSON can say it, UTF-8 cannot."""
    if printable(text) != text:
        raise refuse("{param} holds a character that does not exist.")
    return text


@dataclass(frozen=True, slots=True)
class Whole:
    """For Annotated: a whole number in a range, whose refusals tell all of the range."""

    least: int
    most: int = MANY

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Numbers from `least` to `most`."""
        wanted = f"a whole number from {self.least} to {self.most}"
        return _telling(int_schema(ge=self.least, le=self.most), wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """For Annotated: a finite number in a range, whose refusals tell all of the range."""

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Numbers between the bounds that are given."""
        bounds = (("above", self.above), ("of at least", self.least),
                  ("below", self.below), ("of at most", self.most))  # fmt: skip
        told = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        schema = float_schema(
            gt=self.above, ge=self.least, lt=self.below, le=self.most, allow_inf_nan=False
        )
        return _telling(schema, f"a number {told}")


def _telling(schema: CoreSchema, wanted: str) -> CoreSchema:
    context: dict[str, Any] = {"text": wanted, "code": "invalid_value"}
    return custom_error_schema(
        schema, custom_error_type=REFUSED, custom_error_message="{text}",
        custom_error_context=context,
    )  # fmt: skip


def says(title: str, text: str, default: Any = None) -> Any:
    """A field that may be left open: its label for people and its description.

    The first sentence of the text stands beside the field on the page's form.
    """
    return Field(default, title=title, description=text)


Text = Annotated[str, AfterValidator(_check_text)]
Name = Annotated[Text, StringConstraints(min_length=1)]
Pattern = Annotated[Text, StringConstraints(min_length=1, max_length=200)]  # of a tensor's name
Patterns = Annotated[list[Pattern], Field(min_length=1, max_length=100)]
Count = Annotated[int, Whole(1)]
Bytes = Annotated[int, Whole(0, (1 << 63) - 1)]  # more cannot be written as JSON for everyone
Positive = Annotated[float, Number(above=0)]
NotNegative = Annotated[float, Number(least=0)]
Seed = Annotated[int, Whole(0)]


class Strict(BaseModel):
    """A model that names the field that it does not know; "auto" and null mean not given.

    Its JSON schema says so of every field that may be left open, and what it then is: `defaults`,
    where that is always the same.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    not_here: ClassVar[Mapping[str, str]] = {}  # known fields that ask for what there is not
    defaults: ClassVar[Mapping[str, Any]] = {}

    @validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = {name: value for name, value in values.items() if not cls._is_open(name, value)}
        for name in values.keys() - cls.model_fields.keys():
            if name in cls.not_here:
                text = f"{{param}} cannot be set: {cls.not_here[name]}."
                raise refuse(text, field=name, code="unsupported_field")
            guess = did_you_mean(str(name), cls.model_fields)
            raise refuse(f"Unknown field '{{param}}'.{guess}", field=name, code="unknown_field")
        return values

    @classmethod
    def _is_open(cls, name: str, value: Any) -> bool:
        known = name in cls.model_fields or name in cls.not_here
        return known and (value is None or value == "auto")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        told = handler.resolve_ref_schema(schema)
        fields = told.setdefault("properties", {})
        for name, field in fields.items():
            if name not in told.get("required", ()):
                fields[name] = _left_open(field, cls.defaults.get(name, "auto"))
            elif field.get("type") == "string" and not field.keys() & {"enum", "const"}:
                field["not"] = {"const": "auto"}  # which would mean that it is not given
        for name, why in cls.not_here.items():
            text = f"Cannot be set: {why}."
            fields[name] = {"enum": ["auto", None], "default": "auto", "description": text}
        return schema

    def given(self) -> dict[str, Any]:
        """The fields that were given a value."""
        return self.model_dump(exclude_unset=True)


def _left_open(field: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """The schema of a field that also takes what leaves it open, and says what it then is."""
    about = {name: field[name] for name in ("title", "description") if name in field}
    taken = {name: value for name, value in field.items() if name not in (*about, "default")}
    options = [one for one in taken.get("anyOf", [taken]) if one not in OPEN]
    told = field.get("default")
    simple = told is not None and not isinstance(told, dict)
    return {"anyOf": [*options, *OPEN], "default": told if simple else default, **about}


def forms_of(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas of the forms that a field takes, but those that leave it open.

    `field` is its JSON schema, `definitions` what references of it name. Empty for a field that is
    known and cannot be set.
    """
    forms = [_resolved(one, definitions) for one in field.get("anyOf", [field])]
    return [one for one in forms if one not in OPEN and one.get("enum") != ["auto", None]]


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema itself, where it is a reference."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Mapping[str, Any] = definitions[reference.rsplit("/", 1)[-1]]
    return found
