"""How a job is run: what it keeps and how often, within which limits. It changes no bit. Pure."""

from collections.abc import Mapping
from typing import Any

NEVER = 2**31 - 1  # steps; more than a run has
SHOWN = ("device", "compute_dtype", "state_format", "deterministic", "device_bytes", "host_bytes")
# What is left open in a create body, beside its hyperparameters, and has one answer.
RUN_DEFAULTS: Mapping[str, Any] = {
    "state_format": "exact",
    "deterministic": True,
    "strategy": "auto",
    "durability": "step",
    "keep_commits": 0,
}
PLACEMENT = ("device_bytes", "host_bytes", "strategy")  # asked for by these names, changes no bit


def checkpoint_values(settled: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of TrainConfig that settled hyperparameters say of checkpoints and stopping."""
    every = settled.get("checkpoint_every") or {}
    stopping = settled.get("early_stopping") or {}
    return {
        "checkpoint_every_steps": every.get("steps"),
        "checkpoint_every_minutes": every.get("minutes"),
        "keep_last": settled["keep_last"],
        "keep_best": settled.get("keep_best", 0),  # jobs from before there was a choice
        "early_stop_evals": stopping.get("patience"),
        "early_stop_delta": stopping.get("min_delta", 0.0),
    }


def told_values(settled: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of TrainConfig that settled hyperparameters say of what a run tells and tries.

    Jobs from before there were any say nothing.
    """
    names = ("rehearsal", "row_losses", "sample_rows", "sample_tokens",
             "sample_prompt_tokens", "sample_temperature", "sample_seed")  # fmt: skip
    given = {name: settled[name] for name in names if name in settled}
    return {"sample_prompts": settled.get("sample_prompts") or [], **given}


def free_values(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of TrainConfig that a create body says of commits, limits and export."""
    every = body.get("commit_every")
    durability = body.get("durability") or (
        {"steps": every} if every else RUN_DEFAULTS["durability"]
    )
    if durability == "step":
        durability = {"steps": 1}
    elif durability == "none":
        durability = {}
    model, gguf = asked_exports(body)
    checks = [one.get("check") for one in (model, gguf or {})]
    return {
        "commit_every_steps": durability.get("steps", NEVER),
        "commit_every_minutes": durability.get("minutes"),
        "keep_commits": body.get("keep_commits") or RUN_DEFAULTS["keep_commits"],
        "max_bytes_written": (body.get("limits") or {}).get("max_bytes_written"),
        "export_dtype": model.get("dtype") or "auto",
        "lora_export": "merged" if model.get("format") == "hf" else "adapter",
        "export_gguf": "off" if gguf is None else gguf.get("dtype") or "auto",
        "check_export": False not in checks,
        "max_wear_share": (body.get("limits") or {}).get("max_wear_share"),
    }


def columns_of(body: Mapping[str, Any]) -> dict[str, str]:
    """The columns of the rows by the keys that they stand for."""
    dataset: Mapping[str, Any] = body.get("dataset") or {}
    return dict(dataset.get("columns") or {})


def state_format(body: Mapping[str, Any]) -> str:
    """The state format that a body asks for, by the engine's name; `economy` is one for q8."""
    asked: str = body.get("state_format") or RUN_DEFAULTS["state_format"]
    return "q8" if asked == "economy" else asked


def shown_settings(body: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a job beside its hyperparameters, as its `engine` object echoes them.

    `values` are the fields of its TrainConfig.
    """
    return {
        **{name: values[name] for name in SHOWN},
        "strategy": values.get("strategy", "auto"),  # jobs from before there was a choice
        "durability": _durability(values),
        "keep_commits": values["keep_commits"],
        "export": _exports(values),
        "limits": body.get("limits"),
        "resume_from": body.get("resume_from"),
    }


def asked_exports(
    body: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """What a create body says of the model's own export, and of a GGUF file beside it."""
    asked = body.get("export") or []
    model: Mapping[str, Any] = next((one for one in asked if one.get("format") != "gguf"), {})
    return model, next((one for one in asked if one.get("format") == "gguf"), None)


def _exports(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    adapters = values.get("method") == "lora" and values["lora_export"] == "adapter"
    check = values.get("check_export", True)  # jobs from before there was a choice have none
    found = [
        {
            "format": "adapter" if adapters else "hf",
            "dtype": values["export_dtype"],
            "check": check,
        }
    ]
    if values.get("export_gguf", "off") != "off":
        found.append({"format": "gguf", "dtype": values["export_gguf"], "check": check})
    return found


def _durability(values: Mapping[str, Any]) -> str | dict[str, Any]:
    steps, minutes = values["commit_every_steps"], values["commit_every_minutes"]
    if steps == 1:
        return "step"
    every = {"steps": None if steps == NEVER else steps, "minutes": minutes}
    return {name: value for name, value in every.items() if value is not None} or "none"
