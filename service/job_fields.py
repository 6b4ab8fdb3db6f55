"""The fields of a create body by their dotted paths, drawn from its schema. Pure.

Who names a field by another path, or by the word of another program, is told the path that it has.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .method import LEGACY, METHODS, place_of_settings
from .strict import forms_of

# What other programs call it.
ELSEWHERE_CALLED: Mapping[str, str] = {
    "adapters": "adapter.type",
    "dpo_beta": "beta",
    "epochs": "n_epochs",
    "eval_steps": "eval_every",
    "gpu_memory": "device_bytes",
    "lora": "adapter.type",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "lora_r": "adapter.rank",
    "lora_rank": "adapter.rank",
    "lora_target_modules": "adapter.target_modules",
    "lr": "learning_rate",
    "lr_scheduler_type": "lr_scheduler",
    "max_length": "max_seq_len",
    "max_seq_length": "max_seq_len",
    "memory": "host_bytes",
    "num_epochs": "n_epochs",
    "num_train_epochs": "n_epochs",
    "peft_config": "adapter.type",
    "per_device_train_batch_size": "batch_size",
    "r": "adapter.rank",
    "save_steps": "checkpoint_every.steps",
    "train_batch_size": "batch_size",
    "use_rslora": "adapter.rslora",
    "warmup_steps": "warmup_ratio",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobField:
    """One field. `types` are those of JSON that it takes, but null; `choices` its words.

    `keys_are_free` of an object whose keys are the user's own.
    """

    path: str
    types: frozenset[str]
    choices: tuple[str, ...] = ()
    keys_are_free: bool = False

    @property
    def counts_bytes(self) -> bool:
        """Whether it is a number of bytes."""
        return self.types == {"integer"} and counts_bytes(self.path)


def counts_bytes(path: str) -> bool:
    """Whether a whole number of that name is one of bytes."""
    name = path.rpartition(".")[2]
    return "bytes" in name or "disk" in name


class JobFields:
    """All fields of a create body, from `schema`, its JSON schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions: Mapping[str, Any] = schema.get("$defs", {})
        self._fields = {field.path: field for field in self._walk(schema, "")}

    def find(self, name: str, kind: str) -> JobField | None:
        """The field that is meant by a path, or by a path below the hyperparameters of the method
        `kind`; a key of a free object, such as metadata.team, is a field that takes text.
        """
        for path in (name, f"{place_of_settings(kind)}.{name}"):
            if path in self._fields:
                return self._fields[path]
        for path, field in self._fields.items():
            if field.keys_are_free and name.startswith(f"{path}."):
                return JobField(path=name, types=frozenset({"string"}))
        return None

    def of_other_method(self, name: str, kind: str) -> str | None:
        """The method, not `kind`, whose hyperparameters alone have a field of this name."""
        own = name.removeprefix(f"{place_of_settings(kind)}.").removeprefix(f"{LEGACY}.")
        if f"{place_of_settings(kind)}.{own}" in self._fields:
            return None
        found = (one for one in METHODS if f"{place_of_settings(one)}.{own}" in self._fields)
        return next((one for one in found if one != kind), None)

    def guess(self, name: str, kind: str) -> str | None:
        """The whole path of the field that was meant by an unknown one, if one comes to mind.

        It has the same last word, or what another program calls so, or a like one; nearby first.
        In an object of its own, such as durability, a like word counts within that object alone.
        """
        word = name.rpartition(".")[2]
        if called := self.find(ELSEWHERE_CALLED.get(word, ""), kind):
            return called.path
        settings = place_of_settings(kind)
        home = name.rpartition(".")[0]
        if home.partition(".")[0] == LEGACY:
            home = settings + home.removeprefix(LEGACY)
        for words in ([word], get_close_matches(word, self._words(kind), n=3, cutoff=0.6)):
            for one in words:
                found = [path for path in self._paths(kind) if path.rpartition(".")[2] == one]
                if one != word and home not in ("", settings):
                    found = [path for path in found if path.rpartition(".")[0] == home]
                if found:
                    return min(found, key=lambda path: (path.rpartition(".")[0] != home,
                                                        path.count(".")))  # fmt: skip
        return None

    def names(self, kind: str) -> list[str]:
        """The names that a field of a job of this method can be given by, short ones first."""
        place = f"{place_of_settings(kind)}."
        return [path.removeprefix(place) for path in self._paths(kind)]

    def _paths(self, kind: str) -> list[str]:
        others = tuple(place_of_settings(one) for one in METHODS if one != kind)
        return [path for path in self._fields if not path.startswith((*others, f"{LEGACY}."))]

    def _words(self, kind: str) -> list[str]:
        return sorted({path.rpartition(".")[2] for path in self._paths(kind)})

    def _walk(self, owner: Mapping[str, Any], place: str) -> Iterator[JobField]:
        for name, told in owner.get("properties", {}).items():
            path = f"{place}.{name}".lstrip(".")
            forms = forms_of(told, self._definitions)
            if not forms:
                continue
            words = [word for one in forms for word in one.get("enum", [one.get("const")])]
            yield JobField(
                path=path,
                types=frozenset(str(one.get("type")) for one in forms),
                choices=tuple(word for word in words if isinstance(word, str)),
                keys_are_free=any(isinstance(one.get("additionalProperties"), dict)
                                  for one in forms),
            )  # fmt: skip
            for one in forms:
                yield from self._walk(one, path)
