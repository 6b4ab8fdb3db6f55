"""The hyperparameters of a create request: types, ranges and what each one means.

What stands here is the form on the page and the description in the OpenAPI document, too. How a
field that is left open is settled stands in `hyperparameters.py`.
"""

from typing import Annotated, Literal

from pydantic import Field

from headrace.engine import MAX_LEARNING_RATE

from .hyperparameters import DEFAULTS, DPO_DEFAULTS
from .job_parts import Adapter, EarlyStopping, Every
from .strict import (
    Count,
    Name,
    NotNegative,
    Number,
    Patterns,
    Positive,
    Seed,
    Strict,
    Whole,
    says,
)


class Hyperparameters(Strict):
    """The three of OpenAI, then Headrace's own. Sizes count rows, lengths tokens."""

    not_here = {"neftune": "no noise is added to embeddings"}
    defaults = DEFAULTS

    batch_size: Annotated[int, Whole(1, 256)] | None = says(
        "Batch",
        "Rows in an optimizer step. auto: up to 8, as long as an epoch keeps 50 steps.",
    )
    learning_rate_multiplier: Positive | None = says(
        "Learning rate multiplier",
        "Times the base rate, instead of learning_rate. The base is 1e-5, of adapters 2e-4, and a "
        "tenth of these for dpo. auto: 1, or what learning_rate implies.",
    )
    n_epochs: Annotated[int, Whole(1, 50)] | None = says(
        "Epochs",
        "How often every row is seen. auto: 3, fewer where that would pass 10,000 steps.",
    )
    learning_rate: Annotated[float, Number(above=0, below=MAX_LEARNING_RATE)] | None = says(
        "Learning rate",
        "The highest rate of the run; 1e-5 is a careful start. auto: the base rate times "
        "learning_rate_multiplier. Of both, give one.",
    )
    lr_scheduler: Literal["linear", "cosine", "constant"] | None = says(
        "Learning rate curve", "How the rate goes on after the warm-up."
    )
    warmup_ratio: Annotated[float, Number(least=0, most=1)] | None = says(
        "Warm-up", "Share of all steps in which the rate rises to its highest, 0 to 1."
    )
    weight_decay: Annotated[float, Number(least=0, below=1)] | None = says(
        "Weight decay", "Decoupled weight decay of AdamW, 0 to less than 1."
    )
    max_grad_norm: Positive | None = says(
        "Gradient norm at most",
        "Longer gradients are scaled down to this norm. Not together with clip_mode none.",
    )
    clip_mode: Literal["exact", "lagged", "per_layer", "none"] | None = says(
        "Clipping",
        "By which norm gradients are clipped. exact: that of the whole model in this step; lagged: "
        "of the step before; per_layer: of each layer by itself; none: no clipping.",
    )
    router_aux_loss_coef: NotNegative | None = says(
        "Balance of experts",
        "Weight of the loss that balances the experts of a mixture; 0 for none. auto: as the "
        "model's config says.",
    )
    gradient_accumulation_steps: Count | None = says(
        "Accumulation",
        "Microbatches in a step, at most its rows. auto: as many as make microbatches of up to 4 "
        "rows; once real lengths are known, as the plan says.",
    )
    packing: Literal["on", "off"] | None = says(
        "Packing",
        "Short rows share a microbatch, each seeing itself alone. off: they are padded instead.",
    )
    compile: Literal["off", "static", "dynamic"] | None = says(
        "Compile layers",
        "Whether torch.compile makes the layers: once for all lengths (dynamic), for each "
        "(static), or not at all. auto: dynamic on a GPU where the model's layers can, and off on "
        "a CPU. What was compiled stays in the data directory, for later jobs.",
    )
    microbatch_tokens: Count | None = says(
        "Microbatch",
        "Tokens of a packed microbatch at most. auto: what its rows would take if each were the "
        "longest.",
    )
    max_steps: Count | None = says(
        "Steps at most", "The run ends after so many, before its epochs do. auto: no such limit."
    )
    max_seq_len: Count | None = says(
        "Longest row",
        "Tokens of a row at most; overlong says what becomes of longer ones. auto: what the model "
        "can take.",
    )
    overlong: Literal["error", "drop", "truncate_left", "truncate_right"] | None = says(
        "Rows that are too long",
        "Refuse the file (error), leave them out (drop), or cut their beginning (truncate_left) "
        "or end (truncate_right). Each of them is counted.",
    )
    train_on: Literal["assistant", "last_assistant", "each_assistant", "all"] | None = says(
        "Trained part",
        "Which tokens of a row are trained on. assistant: those of every assistant turn; "
        "last_assistant: of the last one; each_assistant: of each one, in a row of its own; all: "
        "every token. Of preferences the answers are trained, and the last two are refused.",
    )
    loss_chunk: Count | None = says(
        "Loss chunk",
        "Positions whose logits are computed at a time. Fewer take less memory.",
    )
    eval_every: Count | None = says(
        "Evaluate every",
        "Steps between evaluations; wants a validation_file or sample_prompts. auto: none.",
    )
    rehearsal: Literal["on", "off"] | None = says(
        "Rehearsal",
        "Try the largest step before the first, so that want of memory shows at once. auto: "
        "unless that step comes soon.",
    )
    row_losses: bool | None = says(
        "Losses of rows",
        "Find training rows whose loss stands out in every epoch. auto: true, but for dpo, which "
        "has none.",
    )
    sample_prompts: Annotated[list[Name], Field(min_length=1, max_length=16)] | None = says(
        "Sample prompts",
        "Texts that the model goes on from at every evaluation, 16 at most. auto: none.",
    )
    sample_rows: Annotated[int, Whole(0, 16)] | None = says(
        "Sample rows",
        "Rows of the validation_file whose answers the model writes itself at every evaluation.",
    )
    sample_tokens: Annotated[int, Whole(1, 4096)] | None = says(
        "Sample length",
        "Tokens written for a prompt, at most. Wants sample_prompts or sample_rows.",
    )
    sample_prompt_tokens: Count | None = says(
        "Sample prompt length",
        "Tokens of a prompt at most; of a longer one, the last so many. Wants sample_prompts or "
        "sample_rows.",
    )
    sample_temperature: Annotated[float, Number(least=0, below=100)] | None = says(
        "Sample temperature",
        "0: always the likeliest token; above, tokens are drawn. Wants sample_prompts or "
        "sample_rows.",
    )
    sample_seed: Seed | None = says(
        "Sample seed",
        "For drawing tokens at a temperature above 0. Wants a sample_temperature above 0.",
    )
    early_stopping: EarlyStopping | None = says(
        "Stop early",
        "End the run when evaluations no longer become better; wants a validation_file and "
        "eval_every. auto: never.",
    )
    checkpoint_every: Every | None = says(
        "Checkpoint every",
        "How often a checkpoint is listed: after so many steps, or minutes, or whichever comes "
        "first. auto: never.",
    )
    keep_last: Count | None = says(
        "Checkpoints kept",
        "The newest so many checkpoints stay. More than one wants checkpoint_every.",
    )
    keep_best: Annotated[int, Whole(0)] | None = says(
        "Best checkpoints kept",
        "Checkpoints of lowest evaluation loss that stay besides the newest; wants a "
        "validation_file, eval_every and checkpoint_every.",
    )
    optimizer: Literal["adamw"] | None = says("Optimizer", "The one there is: AdamW.")
    adapter: Adapter | None = says(
        "Adapters",
        "Train small matrices beside the frozen model, instead of the model. auto: the model "
        "itself is trained.",
    )
    freeze: Patterns | None = says(
        "Frozen parameters",
        'Patterns of names of parameters that are not trained, such as ["*.mlp.*"]. * stands for '
        "any part of a name. Not together with adapter. auto: none.",
    )


class DpoHyperparameters(Hyperparameters):
    """Those of supervised training, and what preferences take besides. Rows are preferences."""

    defaults = {**DEFAULTS, **DPO_DEFAULTS}

    beta: Annotated[float, Number(above=0, most=2)] | None = says(
        "Beta",
        "Of dpo: the higher, the nearer the model stays to what it was. It weighs how far the "
        "log-probabilities of answers have moved.",
    )
    label_smoothing: Annotated[float, Number(least=0, below=0.5)] | None = says(
        "Label smoothing",
        "Of dpo: share of preferences that are taken to be the wrong way round, below 0.5.",
    )


class LegacyHyperparameters(Hyperparameters):
    """The deprecated top-level form of the supervised method's settings."""
