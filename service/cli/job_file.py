"""A create body in a file: JSON, or YAML by its suffix."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from .output import CliError

YAML_SUFFIXES = (".yaml", ".yml")


class _Loader(yaml.SafeLoader):
    """YAML as its version 1.2 reads plain words: 1e-5 is a number, and no, on and off are words."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":bool", ":float"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)


def read_job_file(path: Path) -> dict[str, Any]:
    """The object in a file; CliError with the reason when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
        body = yaml.load(text, _Loader) if path.suffix in YAML_SUFFIXES else json.loads(text)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise CliError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise CliError(f"{path} is nested too deeply to be read") from error
    except ValueError as error:
        raise CliError(f"{path} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise CliError(f"{path} holds a {type(body).__name__}; wanted an object, a create body")
    return body
