"""The loop's state in a commit: what is needed to go on exactly where the commit was made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from headrace.storage import TensorStore

from .config import TrainConfig
from .errors import SettingsChanged

# What runs did before a setting was there, by its name in the numerics key.
_BEFORE_PACKING: dict[str, Any] = {"packing": "off", "microbatch_tokens": None}
_BEFORE: dict[str, Any] = {
    **_BEFORE_PACKING,
    "method": "full", "freeze": [], "lora_rank": 16, "lora_alpha": 32.0, "lora_rslora": False,
    "lora_targets": ["all-linear"], "frozen_format": "auto",
    "router_aux_loss_coef": None,
    "objective": "supervised", "dpo_beta": 0.1, "dpo_label_smoothing": 0.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """Where the loop stands after `step` steps. The data cursor is the step itself.

    `updates` counts steps that changed the weights (skipped ones do not), `last_norm` is the
    gradient norm that clip mode `lagged` uses next, `clipped_last` what the way `auto` bets on.
    """

    step: int = 0
    updates: int = 0
    skipped_in_row: int = 0
    trained_tokens: int = 0
    last_norm: float | None = None
    clipped_last: bool = True  # a first step usually clips: do not bet on the contrary
    last_loss: float | None = None
    last_accuracy: float | None = None
    last_eval_loss: float | None = None
    last_eval_accuracy: float | None = None
    # Of the evaluations between steps: the newest one's step, the best loss, how many came since.
    # Each counts once, also when it is done again after a crash.
    last_eval_step: int = 0
    best_eval_loss: float | None = None
    evals_since_best: int = 0
    reference: str | None = None  # of preferences: names the weights before training

    def to_metadata(
        self, config: TrainConfig, report: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """What a commit carries: the loop's state, its numerics key and the step's report."""
        return {"loop": asdict(self), "numerics_key": config.numerics_key, "report": report}

    @classmethod
    def of(cls, store: TensorStore, config: TrainConfig) -> Self:
        """The state in the store's last commit.

        SettingsChanged when it was made under another numerics key: going on would not give the
        weights that either setting promises.
        """
        saved = {**_BEFORE, **store.metadata["numerics_key"]}
        wanted = config.numerics_key
        changed = [
            f"{name} was {saved.get(name)!r}, now {value!r}"
            for name, value in wanted.items()
            if saved.get(name) != value
        ]
        if changed:
            raise SettingsChanged(
                "the saved state cannot be resumed with other settings: "
                + "; ".join(changed)
                + ". Start a new job, or give the settings it was started with."
            )
        return cls(**store.metadata["loop"])


def as_begun(config: TrainConfig, metadata: Mapping[str, Any]) -> TrainConfig:
    """The config under which the commit with this metadata can be resumed.

    A run that began before rows were packed goes on as it was, though packing is the default now.
    """
    missing = _BEFORE_PACKING.keys() - metadata["numerics_key"].keys()
    return replace(config, **{name: _BEFORE_PACKING[name] for name in missing})
