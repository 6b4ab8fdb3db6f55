"""The fields of the form for a job, drawn from the schema of create requests. Pure.

So a setting that the API takes is on the form, whether anybody thought of its label or not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .job_fields import counts_bytes, place_of_settings
from .schemas import CreateJob
from .strict import HYPERPARAMETERS

Kind = Literal["text", "integer", "number", "bytes", "boolean", "choice", "json"]

# Placed by hand in the form, deprecated, or for programs.
ELSEWHERE = frozenset(
    {"model", "training_file", "validation_file", "suffix", "method", "hyperparameters", "dry_run"}
)
DPO = place_of_settings("dpo")
COMMON = (
    "n_epochs",
    "batch_size",
    "learning_rate",
    "max_steps",
    "max_seq_len",
    "eval_every",
    "checkpoint_every.steps",
    "adapter.type",
)
LABELS: Mapping[str, tuple[str, str]] = {
    "type": ("Method", "on answers (supervised), or on preferences (dpo)"),
    "beta": ("Beta", "of dpo: with more, nearer to the model before; 0.1"),
    "label_smoothing": ("Label smoothing", "of dpo: share of preferences that may be wrong"),
    "n_epochs": ("Epochs", "how often every row is seen"),
    "batch_size": ("Batch", "rows in a step"),
    "learning_rate": ("Learning rate", "1e-5 is a careful start"),
    "learning_rate_multiplier": ("Learning rate multiplier", "times 1e-5; instead of the rate"),
    "max_steps": ("Steps at most", "ends before the epochs do"),
    "max_seq_len": ("Longest row", "in tokens"),
    "eval_every": ("Evaluate every", "so many steps; wants validation rows"),
    "rehearsal": ("Rehearsal", "the largest step before the first, unless it comes soon"),
    "row_losses": ("Losses of rows", "find rows that stand out; on unless told otherwise"),
    "sample_prompts": ("Sample prompts", "JSON list of texts that the model goes on from"),
    "sample_rows": ("Sample rows", "validation rows whose answers the model writes itself"),
    "sample_tokens": ("Sample length", "tokens at most, 64 unless told otherwise"),
    "sample_prompt_tokens": ("Sample prompt length", "the last so many tokens of it, 512"),
    "sample_temperature": ("Sample temperature", "0: always the likeliest token"),
    "sample_seed": ("Sample seed", "for a temperature above 0"),
    "checkpoint_every.steps": ("Checkpoint every", "so many steps"),
    "checkpoint_every.minutes": ("Checkpoint every", "so many minutes"),
    "keep_last": ("Checkpoints kept", "the newest ones"),
    "keep_best": ("Best checkpoints kept", "by evaluation loss"),
    "early_stopping.patience": ("Stop early after", "evaluations without a better loss"),
    "early_stopping.min_delta": ("A better loss is", "lower by at least this"),
    "lr_scheduler": ("Learning rate curve", "after the warm-up"),
    "warmup_ratio": ("Warm-up", "part of all steps, 0 to 1"),
    "weight_decay": ("Weight decay", "0 to 1"),
    "max_grad_norm": ("Gradient norm at most", "longer ones are clipped"),
    "clip_mode": ("Clipping", "exact is the norm over the whole model"),
    "router_aux_loss_coef": ("Balance of experts", "of a mixture; 0 for none"),
    "gradient_accumulation_steps": ("Accumulation", "microbatches in a step"),
    "packing": ("Packing", "short rows together, each seeing itself alone"),
    "microbatch_tokens": ("Microbatch", "tokens at most"),
    "compile": ("Compile layers", "on a GPU once for all lengths, unless told otherwise"),
    "overlong": ("Rows that are too long", "refused unless told otherwise"),
    "train_on": ("Trained part", "of each row"),
    "loss_chunk": ("Loss chunk", "positions at a time"),
    "optimizer": ("Optimizer", ""),
    "priority": ("Priority", "higher runs earlier"),
    "seed": ("Seed", "the same seed gives the same bits"),
    "device_bytes": ("Device memory at most", "such as 20GB"),
    "host_bytes": ("Host memory at most", "such as 64GB"),
    "compute_dtype": ("Compute in", "bfloat16 on a GPU, float32 on a CPU"),
    "state_format": ("State format", "exact: 12 bytes a parameter"),
    "strategy": ("Strategy", "place state as that system does; auto: the fastest"),
    "deterministic": ("Deterministic", "the same bits on every run"),
    "commit_every": ("Commit every", "so many steps"),
    "keep_commits": ("Commits kept", "besides the live one"),
    "durability": ("Durability", 'step, none, or JSON such as {"minutes": 10}'),
    "export": ("Export", 'JSON such as [{"format": "gguf", "dtype": "q8_0"}]'),
    "dataset.columns": ("Columns", 'JSON such as {"prompt": "question"}'),
    "resume_from": ("Resume from", "a checkpoint, or a job that has ended"),
    "limits.max_hours": ("Run at most", "hours, then the job pauses"),
    "limits.min_free_disk": ("Keep free", "on the data drive; such as 50GB"),
    "limits.max_wear_share": ("Wear at most", "of the drives' rated life, 0 to 1"),
    "limits.max_bytes_written": ("Write at most", "then the job pauses; such as 2TB"),
    "adapter.type": ("Adapters", "train small matrices beside the model; qlora: over few bits"),
    "adapter.rank": ("Rank of adapters", "16 unless told otherwise"),
    "adapter.alpha": ("Alpha of adapters", "twice the rank"),
    "adapter.rslora": ("Scale by the root of the rank", "rsLoRA"),
    "adapter.dropout": ("Dropout of adapters", "there is none: 0"),
    "adapter.target_modules": ("Adapted projections", "all-linear, an expression, or a JSON list"),
    "adapter.base": ("Frozen weights as", "of qlora"),
    "freeze": ("Frozen parameters", 'JSON list of patterns, such as ["*.mlp.*"]'),
    "integrations": ("Trackers", 'JSON such as [{"type": "tensorboard"}]'),
    "metadata": ("Metadata", "JSON: words of your own"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input. `path` is where its value goes in the body; `choices` are for a `choice`."""

    path: str
    label: str
    help: str
    kind: Kind
    choices: Sequence[str] = ()

    @property
    def id(self) -> str:
        """The id of the input."""
        own = self.path.removeprefix(f"{HYPERPARAMETERS}.").removeprefix(f"{DPO}.")
        return "f-" + own.replace(".", "-")


def common_fields() -> list[Field]:
    """The method, and the hyperparameters that most people look for first."""
    schema = CreateJob.model_json_schema()
    method = _fields(schema, schema["$defs"]["Method"], "type", prefix="method.")
    found = {name: field for name, field in _hyperparameters()}
    return [*(field for _, field in method), *(found[name] for name in COMMON)]


def other_fields() -> list[Field]:
    """The other hyperparameters."""
    return [field for name, field in _hyperparameters() if name not in COMMON]


def run_fields() -> list[Field]:
    """How the job runs: what is not about learning."""
    schema = CreateJob.model_json_schema()
    names = [name for name in schema["properties"] if name not in ELSEWHERE]
    return [field for name in names for _, field in _fields(schema, schema, name, prefix="")]


def _hyperparameters() -> Iterator[tuple[str, Field]]:
    schema = CreateJob.model_json_schema()
    inner = schema["$defs"]["Hyperparameters"]
    for name in inner["properties"]:
        yield from _fields(schema, inner, name, prefix=f"{HYPERPARAMETERS}.")
    preferences = schema["$defs"]["DpoHyperparameters"]
    for name in (one for one in preferences["properties"] if one not in inner["properties"]):
        yield from _fields(schema, preferences, name, prefix=f"{DPO}.")


def _fields(
    schema: Mapping[str, Any], owner: Mapping[str, Any], name: str, *, prefix: str, within: str = ""
) -> Iterator[tuple[str, Field]]:
    """The field of a property, or those of the properties of an object."""
    own = within + name
    options = [
        _resolved(schema, option)
        for option in owner["properties"][name].get("anyOf", [owner["properties"][name]])
    ]
    options = [option for option in options if option.get("type") != "null"]
    if len(options) == 1 and options[0].get("properties"):
        for inner in options[0]["properties"]:
            yield from _fields(schema, options[0], inner, prefix=prefix, within=f"{own}.")
        return
    label, help = LABELS.get(own, (own.replace("_", " ").replace(".", ", ").capitalize(), ""))
    kind, choices = _kind(own, options)
    yield own, Field(path=prefix + own, label=label, help=help, kind=kind, choices=choices)


def _resolved(schema: Mapping[str, Any], option: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = option.get("$ref")
    if reference is None:
        return option
    found: Mapping[str, Any] = schema["$defs"][reference.rsplit("/", 1)[-1]]
    return found


def _kind(name: str, options: Sequence[Mapping[str, Any]]) -> tuple[Kind, Sequence[str]]:
    choices = [choice for one in options for choice in one.get("enum", [one.get("const")])]
    if choices and all(isinstance(choice, str) for choice in choices):
        return "choice", choices
    types = {one.get("type") for one in options}
    if types == {"integer"} and counts_bytes(name):
        return "bytes", ()
    if len(types) != 1:
        return "json", ()  # also takes a plain word
    found = types.pop()
    if found in ("integer", "number", "boolean"):
        return found, ()
    return ("text" if found == "string" else "json"), ()
