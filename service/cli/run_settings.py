"""Settings of a run as `headrace plan` takes and says them: by its own options, or by --set."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from .output import CliError

if TYPE_CHECKING:
    from headrace.engine import Setting

GIVEN_BY = {  # fields of the run that have an option
    "batch_rows": "--rows",
    "microbatch_rows": "--microbatch-rows",
    "strategy": "--strategy",
    "device_bytes": "--device-bytes",
    "host_bytes": "--host-bytes",
}
ROOM = {"longest_row_tokens": "--tokens", "volumes": "--volume"}  # what is given of rows and box
OF_METHOD = {  # fields of the run that say something of one method alone, and what asks for it
    **dict.fromkeys(("lora_rank", "lora_alpha", "lora_rslora", "lora_targets"), "method=lora"),
    **dict.fromkeys(("dpo_beta", "dpo_label_smoothing"), "objective=dpo"),
}


def run_values(settings: list[str]) -> dict[str, Any]:
    """Fields of a run from NAME=VALUE. CliError for what is no field, for one that has an option of
    its own, or that is of a method that is not asked for."""
    from headrace.engine import TrainConfig

    from ..errors import did_you_mean
    from .settings import parse_setting

    known = [field.name for field in fields(TrainConfig)]
    values = dict(map(parse_setting, settings))
    if values.get("clip_mode") == "none" and "max_grad_norm" in values:
        raise CliError(
            "--set max_grad_norm says nothing with clip_mode=none; leave one of them out"
        )
    asked = {f"{name}={value}" for name, value in values.items()}
    for name in values:
        if name in GIVEN_BY:
            raise CliError(f"--set {name}: give {GIVEN_BY[name]} instead")
        if name not in known:
            raise CliError(f"--set {name}: a run has no such field.{did_you_mean(name, known)}")
        if (wanted := OF_METHOD.get(name)) and wanted not in asked:
            raise CliError(f"--set {name} says nothing without --set {wanted}; give that too")
    return values


def option_of(setting: str) -> str:
    """The option that gives a setting of a run of a shape or a model."""
    return {**GIVEN_BY, **ROOM}.get(setting, f"--set {setting}")


def as_option(setting: str, value: str) -> str:
    """A setting and its value as they are typed: `--rows 4`, `--set clip_mode=per_layer`."""
    option = option_of(setting)
    return f"{option}{'=' if option.startswith('--set ') else ' '}{value}"


def say_option(setting: "Setting") -> str:
    """A setting within a refusal, by its option; with the value that it might be given."""
    if setting.to is not None:
        return as_option(setting.name, str(setting.to))
    return str(replace(setting, name=option_of(setting.name)))


def exact_bytes(num_bytes: int) -> str:
    """A size that the options take, and no less: in MiB where that is a whole number."""
    whole, rest = divmod(num_bytes, 1 << 20)
    return f"{num_bytes}" if rest else f"{whole}MiB"
