"""The hyperparameters of a job: every "auto" settled by a rule that can be read here. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from headrace.engine import MAX_LEARNING_RATE, ModelSpec, Objective

from .errors import ApiError
from .method import HYPERPARAMETERS

BASE_LEARNING_RATE = 1e-5  # what learning_rate_multiplier multiplies
BASE_ADAPTER_RATE = 2e-4  # likewise, where adapters are trained
DPO_RATE_SHARE = 0.1  # of both, on preferences: the weights should stay near those before
MAX_AUTO_STEPS = 10_000
MAX_AUTO_EPOCHS = 3
MAX_AUTO_BATCH_ROWS = 8
MIN_AUTO_STEPS_PER_EPOCH = 50
MAX_AUTO_MICROBATCH_ROWS = 4
# What is left open and has one answer, whatever the rows, the model and the machine are.
DEFAULTS: Mapping[str, Any] = {
    "lr_scheduler": "linear",
    "warmup_ratio": 0.0,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "clip_mode": "exact",
    "packing": "on",
    "overlong": "error",
    "train_on": "assistant",
    "loss_chunk": 256,
    "sample_rows": 0,
    "sample_tokens": 64,
    "sample_prompt_tokens": 512,
    "sample_temperature": 0.0,
    "sample_seed": 0,
    "keep_last": 1,
    "keep_best": 0,
    "optimizer": "adamw",
}
DPO_DEFAULTS: Mapping[str, Any] = {"beta": 0.1, "label_smoothing": 0.0}
# Of the texts that are written.
SAMPLE_SETTINGS = ("sample_tokens", "sample_prompt_tokens", "sample_temperature", "sample_seed")
ADAPTER_DEFAULTS: Mapping[str, Any] = {
    "rank": 16,
    "rslora": False,
    "dropout": 0.0,
    "target_modules": "all-linear",
}


def settle(
    asked: Mapping[str, Any],
    kind: Objective = "supervised",
    *,
    num_rows: int,
    max_positions: int,
    compiles: bool = False,
) -> dict[str, Any]:
    """Hyperparameters with every "auto" replaced. Settling what is settled changes nothing.

    batch_size: up to 8 rows, as long as an epoch keeps 50 steps. n_epochs: 3, fewer where that
    would pass 10,000 steps. learning_rate: the multiplier times 1e-5, of adapters times 2e-4, of
    dpo a tenth of these. max_seq_len: what the model can do.
    gradient_accumulation_steps: microbatches of up to 4 rows, packed as many tokens as so many of
    the longest rows take, once the rows are known. compile: dynamic where layers are compiled
    unasked (`compiles`). router_aux_loss_coef: None, as the model's config says. adapter: alpha
    twice the rank; the base of qlora is nf4. max_grad_norm: None where nothing is clipped. The
    rest: DEFAULTS.
    """
    defaults = {**DEFAULTS, "max_grad_norm": max_norm(asked.get("clip_mode"))}
    batch = asked.get("batch_size") or min(
        MAX_AUTO_BATCH_ROWS, max(1, num_rows // MIN_AUTO_STEPS_PER_EPOCH)
    )
    steps_per_epoch = math.ceil(num_rows / batch)
    auto_epochs = max(1, min(MAX_AUTO_EPOCHS, MAX_AUTO_STEPS // steps_per_epoch))
    rate, multiplier = learning_rate(asked, kind)
    auto_accumulation = math.ceil(batch / MAX_AUTO_MICROBATCH_ROWS)
    return {
        "n_epochs": asked.get("n_epochs") or auto_epochs,
        "batch_size": batch,
        "learning_rate_multiplier": multiplier,
        "learning_rate": rate,
        **_with_defaults(asked, defaults),
        "router_aux_loss_coef": asked.get("router_aux_loss_coef"),
        "gradient_accumulation_steps": min(
            batch, asked.get("gradient_accumulation_steps") or auto_accumulation
        ),
        "compile": asked.get("compile") or ("dynamic" if compiles else "off"),
        "microbatch_tokens": asked.get("microbatch_tokens"),
        "max_steps": asked.get("max_steps"),
        "max_seq_len": asked.get("max_seq_len") or max_positions,
        "eval_every": asked.get("eval_every"),
        "rehearsal": asked.get("rehearsal") or "auto",
        "row_losses": kind == "supervised" and asked.get("row_losses") is not False,
        "sample_prompts": asked.get("sample_prompts"),
        "early_stopping": asked.get("early_stopping"),
        "checkpoint_every": asked.get("checkpoint_every"),
        "adapter": _settle_adapter(asked.get("adapter")),
        "freeze": asked.get("freeze"),
        **(_with_defaults(asked, DPO_DEFAULTS) if kind == "dpo" else {}),
    }


def max_norm(clip_mode: str | None) -> float | None:
    """What max_grad_norm is when it is left open."""
    norm: float = DEFAULTS["max_grad_norm"]
    return None if clip_mode == "none" else norm


def _with_defaults(asked: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asked.get(name) or default for name, default in defaults.items()}


def _settle_adapter(asked: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if asked is None:
        return None
    settled = _with_defaults(asked, ADAPTER_DEFAULTS)
    return {
        "type": asked["type"],
        **settled,
        "alpha": asked.get("alpha") or 2.0 * settled["rank"],
        "base": (asked.get("base") or "nf4") if asked["type"] == "qlora" else None,
    }


def row_rules(settled: Mapping[str, Any]) -> dict[str, Any]:
    """What settled hyperparameters say of rows, by the names of the engine's RowRules.

    A job's data sets are made by these rules, and `headrace data check` looks by them.
    """
    batch = settled["batch_size"]
    return {
        "max_seq_len": settled["max_seq_len"],
        "overlong": settled["overlong"],
        "train_on": settled.get("train_on", "assistant"),  # jobs from before there was a choice
        "batch_rows": batch,
        "microbatch_rows": math.ceil(batch / settled["gradient_accumulation_steps"]),
    }


def method_values(settled: Mapping[str, Any], kind: Objective) -> dict[str, Any]:
    """The fields of TrainConfig that say what is trained, and on what."""
    adapter = settled.get("adapter")  # jobs from before there was a choice have none
    values: dict[str, Any] = {"freeze": settled.get("freeze") or []}
    if kind == "dpo":
        values |= {
            "objective": kind,
            "dpo_beta": settled["beta"],
            "dpo_label_smoothing": settled["label_smoothing"],
        }
    if adapter is None:
        return values
    targets = adapter["target_modules"]
    return {
        **values,
        "method": "lora",
        "lora_rank": adapter["rank"],
        "lora_alpha": adapter["alpha"],
        "lora_rslora": adapter["rslora"],
        "lora_targets": [targets] if isinstance(targets, str) else targets,
        "frozen_format": adapter["base"] or "auto",
    }


def learning_rate(asked: Mapping[str, Any], kind: Objective) -> tuple[float, float]:
    """The rate and the multiplier that gives it. ApiError when both were asked and disagree."""
    rate, multiplier = asked.get("learning_rate"), asked.get("learning_rate_multiplier")
    base = BASE_ADAPTER_RATE if asked.get("adapter") else BASE_LEARNING_RATE
    if kind == "dpo":
        base = float(f"{DPO_RATE_SHARE * base:.12g}")
    if rate is None:
        multiplier = multiplier or 1.0
        if not 0 < multiplier * base < MAX_LEARNING_RATE:
            raise refuse(
                f"learning_rate_multiplier is {multiplier:g}, which times {base:g} is a rate of "
                f"{multiplier * base:g}; wanted a rate above 0 and below {MAX_LEARNING_RATE}.",
                "learning_rate_multiplier",
            )
        return multiplier * base, multiplier
    implied = float(f"{rate / base:.12g}")
    if multiplier is None:
        return rate, implied
    if not math.isclose(multiplier, implied, rel_tol=1e-9):
        raise refuse(
            f"learning_rate {rate} and learning_rate_multiplier {multiplier} "
            f"(of {base}) disagree; give one of them.",
            "learning_rate_multiplier",
        )
    return rate, multiplier


def check_asked(
    asked: Mapping[str, Any], kind: Objective, spec: ModelSpec, *, has_validation: bool
) -> None:
    """Refuse, as ApiError, what this model or this request cannot do."""
    if kind == "dpo":
        _check_of_preferences(asked)
    longest = asked.get("max_seq_len")
    if longest and longest > spec.max_positions:
        raise refuse(
            f"max_seq_len is {longest}; the model takes at most {spec.max_positions} tokens.",
            "max_seq_len",
        )
    if asked.get("clip_mode") == "none" and asked.get("max_grad_norm"):
        message = f"max_grad_norm is {asked['max_grad_norm']:g}, but clip_mode none clips nothing; "
        raise refuse(f"{message}leave one of them out.", "max_grad_norm")
    if asked.get("packing") == "off" and asked.get("microbatch_tokens"):
        raise refuse("microbatch_tokens is for packed rows, but packing is off.", "packing")
    if asked.get("eval_every") and not (has_validation or asked.get("sample_prompts")):
        message = "eval_every needs a validation_file, or sample_prompts; there are none."
        raise refuse(message, "eval_every")
    if asked.get("sample_rows") and not has_validation:
        raise refuse("sample_rows are of a validation_file; there is none.", "sample_rows")
    for name in ("early_stopping", "keep_best"):
        if asked.get(name) and not (asked.get("eval_every") and has_validation):
            message = f"{name} goes by evaluations; give a validation_file and eval_every too."
            raise refuse(message, name)
    if asked.get("adapter") and asked.get("freeze"):
        raise refuse("freeze and adapter do not go together: adapters freeze it all.", "freeze")
    kept = {
        "keep_best": asked.get("keep_best") or 0,
        "keep_last": (asked.get("keep_last") or DEFAULTS["keep_last"]) - DEFAULTS["keep_last"],
    }
    for name, more in kept.items():
        if more and not asked.get("checkpoint_every"):
            raise refuse(f"{name} is of checkpoints; give checkpoint_every too.", name)
    _check_samples(asked)


def _check_samples(asked: Mapping[str, Any]) -> None:
    """Refuse settings of sample texts where none is written. What they are unasked is no request:
    settled hyperparameters have it."""
    given = {name: asked.get(name) not in (None, DEFAULTS[name]) for name in SAMPLE_SETTINGS}
    if not (asked.get("sample_prompts") or asked.get("sample_rows")):
        for name in (name for name, is_given in given.items() if is_given):
            message = f"{name} is of sample texts; give sample_prompts, or sample_rows, too."
            raise refuse(message, name)
    if given["sample_seed"] and not asked.get("sample_temperature"):
        message = "sample_seed is of texts that are drawn; give a sample_temperature above 0 too."
        raise refuse(message, "sample_seed")


def _check_of_preferences(asked: Mapping[str, Any]) -> None:
    part = asked.get("train_on")
    if part in ("all", "each_assistant"):
        raise refuse(f"train_on is {part}; of preferences both answers are trained.", "train_on")
    if asked.get("row_losses"):
        raise refuse("row_losses are of rows with one answer, not of preferences.", "row_losses")


def refuse(message: str, name: str) -> ApiError:
    """The 400 for a hyperparameter."""
    return ApiError(400, message, param=f"{HYPERPARAMETERS}.{name}", code="invalid_value")
