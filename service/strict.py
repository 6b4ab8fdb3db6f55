"""What bodies are made of: models that know their place and refuse what they do not know."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic import model_validator as validator

from .errors import ApiError, did_you_mean, printable

HYPERPARAMETERS = "method.supervised.hyperparameters"


def _check_text(text: str) -> str:
    """Refuse half a surrogate pair: JSON can say it, UTF-8 cannot."""
    if printable(text) != text:
        raise ValueError("it holds a character that does not exist")
    return text


Text = Annotated[str, AfterValidator(_check_text)]
Name = Annotated[Text, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Bytes = Annotated[int, Field(ge=0, lt=1 << 63)]  # more cannot be written as JSON for everyone
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """A model that names the field that it does not know. `path` is its own place in the body."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    path: ClassVar[str] = ""
    not_here: ClassVar[Mapping[str, str]] = {}  # known fields that ask for what there is not

    @validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = {
            name: value for name, value in values.items() if not cls._asks_nothing(name, value)
        }
        for name in values.keys() - cls.model_fields.keys():
            param = f"{cls.path}.{name}".lstrip(".")
            if name in cls.not_here:
                message = f"{param} cannot be set: {cls.not_here[name]}."
                raise ApiError(400, message, param=param, code="unsupported_field")
            guess = did_you_mean(str(name), cls.model_fields)
            message = f"Unknown field {param!r}.{guess}"
            raise ApiError(400, message, param=param, code="unknown_field")
        return values

    @classmethod
    def _asks_nothing(cls, name: str, value: Any) -> bool:
        known = name in cls.model_fields or name in cls.not_here
        return known and (value is None or value == "auto")

    def given(self) -> dict[str, Any]:
        """The fields that were given a value."""
        return self.model_dump(exclude_unset=True)
