"""A job that trains adapters, from its create body to a directory that peft loads."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.engine import read_model_spec
from headrace.service.foreground import train_foreground
from headrace.service.settings import Settings
from tiny import make_tiny_llama

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers


@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_a_job_trains_adapters_that_peft_loads(tmp_path: Path, kind: str) -> None:
    from peft import PeftModel

    model_dir = make_tiny_llama(tmp_path / "tiny", tied=True, seed=0, layers=2)
    turns = [
        [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i} sluices."}]
        for i in range(4)
    ]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    (tmp_path / "data").mkdir()
    adapter = {"type": kind, "rank": 2, "target_modules": ["q_proj", "down_proj"]}
    asked = {"adapter": adapter, "max_steps": 2, "learning_rate": 0.01}
    done = train_foreground(
        {
            "model": "tiny",
            "training_file": "rows.jsonl",
            "method": {"type": "supervised", "supervised": {"hyperparameters": asked}},
        },
        settings=Settings(data_dir=tmp_path / "data", device="cpu"),
        model_path=model_dir,
        beside=tmp_path,
        emit=lambda event: None,
    )
    assert done.result.outcome == "succeeded" and done.result.export_dir is not None
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    ids = torch.arange(12)[None]
    before = base(ids).logits.detach()
    tuned = PeftModel.from_pretrained(base, done.result.export_dir)
    assert tuned.peft_config["default"].target_modules == {"q_proj", "down_proj"}
    assert not torch.equal(tuned(ids).logits, before)
    with pytest.raises(ValueError, match="it holds adapters alone"):
        read_model_spec(done.result.export_dir)
