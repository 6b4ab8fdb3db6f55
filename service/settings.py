"""What the daemon is told at start: a TOML file, then `HEADRACE_*`, then the command line."""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from headrace.storage import VolumeConfig, parse_bytes

GIB = 1 << 30


def _read_size(value: Any) -> Any:
    return parse_bytes(value) if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(_read_size), Field(ge=0)]  # bytes, or such as "8GiB"


class Settings(BaseSettings):
    """Made once and passed down. Sizes are bytes and may be written "8GiB".

    `volumes` are directories for the training state, each with an optional ":BYTES" limit;
    without one they lie in the data directory. Where there can be several, one string with commas
    will do. `device_bytes` and `host_bytes` of None mean what the box has. `tokens_file` holds the
    hashes of access tokens; None: tokens.json in the data directory. The events of a job are
    shortened so many days after its end. At `log_level` "debug" every request is logged, else those
    that change something and those that failed here. `calibrate`: the first job measures what is
    not known yet of drives and compute, some seconds.
    """

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_", env_ignore_empty=True, extra="forbid", frozen=True
    )

    data_dir: Path = Path("~/.local/share/headrace")
    models_dir: Annotated[tuple[Path, ...], NoDecode] = ()
    host: str = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65535)
    volumes: Annotated[tuple[str, ...], NoDecode] = ()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    device_bytes: Size | None = None
    host_bytes: Size | None = None
    max_file_bytes: Size = 8 * GIB
    tokens_file: Path | None = None
    keep_events_days: float = Field(default=90, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    calibrate: bool = True

    @field_validator("models_dir", "volumes", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return (value,) if isinstance(value, Path) else value

    @field_validator("volumes")
    @classmethod
    def _with_readable_limits(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            VolumeConfig.parse(text)  # ValueError for a limit that is no size
        return value

    @field_validator("data_dir", "tokens_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value and value.expanduser().absolute()

    @field_validator("models_dir")
    @classmethod
    def _all_absolute(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(path.expanduser().absolute() for path in value)

    @property
    def database_path(self) -> Path:
        """The journal's database."""
        return self.data_dir / "headrace.db"

    @property
    def files_dir(self) -> Path:
        """Uploads and results, one file per id."""
        return self.data_dir / "files"

    @property
    def jobs_dir(self) -> Path:
        """One folder per job."""
        return self.data_dir / "jobs"

    @property
    def volume_list(self) -> tuple[str, ...]:
        """The volumes, or the one in the data directory when none is named."""
        return self.volumes or (str(self.data_dir / "volumes"),)

    @property
    def tokens_path(self) -> Path:
        """Where the hashes of the access tokens lie."""
        return self.tokens_file or self.data_dir / "tokens.json"

    @classmethod
    def load(cls, config: Path | None = None, **given: Any) -> Self:
        """Read the TOML file; the environment overrides it and `given` overrides both.

        `given` values of None count as not given. ValueError for an unknown name or a bad value.
        """
        values = tomllib.loads(config.read_text(encoding="utf-8")) if config else {}
        from_environment = {
            name for name in cls.model_fields if os.environ.get(f"HEADRACE_{name}".upper())
        }
        kept = {name: value for name, value in values.items() if name not in from_environment}
        return cls(**kept | {name: value for name, value in given.items() if value is not None})
