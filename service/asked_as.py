"""What jobs call the settings of a run: the engine's names, as those of a create body. Pure."""

from dataclasses import replace

from headrace.engine import Refusal, Setting

ACCUMULATION = "gradient_accumulation_steps"
# By the field of TrainConfig; what is not here has the same name in both.
ASKED_AS = {
    "batch_rows": "batch_size",
    "longest_row_tokens": "max_seq_len",
    "lora_targets": "adapter.target_modules",
    "max_bytes_written": "limits.max_bytes_written",
    "max_wear_share": "limits.max_wear_share",
}


def name_of(setting: str) -> str:
    """The field of a create body, for one of TrainConfig."""
    return ASKED_AS.get(setting, setting)


def say(setting: Setting) -> str:
    """A setting of a run within a message, for whoever asks for jobs."""
    if setting.name == "microbatch_rows":  # a job says how many of them a step has
        return f"the rows of a microbatch (now {setting.now}, fewer by more {ACCUMULATION})"
    return str(replace(setting, name=name_of(setting.name)))


def message_of(error: BaseException) -> str:
    """The message of an error, in the words of jobs; its kind when it has none."""
    return (error.in_words(say) if isinstance(error, Refusal) else str(error)) or type(
        error
    ).__name__
