"""The loss that balances a mixture's experts: transformers' own, whatever the microbatches are."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from datasets import write_dataset, write_preferences
from headrace.engine import BadSetting, Box, TrainConfig, make_plan, read_model_spec, shape_spec
from headrace.engine.balance import Balance, is_real
from headrace.engine.config import Packing
from headrace.engine.data import (
    Microbatch,
    TokenDataset,
    make_microbatch,
    open_rows,
    step_microbatches,
)
from headrace.engine.experts import Routed
from headrace.engine.methods import method_spec
from headrace.engine.model import ExpertSpec
from headrace.engine.packing import Arrangement
from reference import as_stored, relative_differences, train_reference
from runs import Run, assert_same_state, read_params
from tiny_families import write_family

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers

MIXTURES = ("mixtral", "qwen3_moe")
LENGTHS = [24, 9, 17, 5, 30]
BOX = Box(device="cpu", device_bytes=2**33, host_bytes=2**33, volumes={"/drive": 2**40})
COEFFICIENT = 0.5  # so large that no gradient is right without it
ONE_STEP: dict[str, Any] = {
    "max_steps": 1, "batch_rows": 5, "microbatch_rows": 2, "beta1": 0.0, "clip_mode": "none",
    "router_aux_loss_coef": COEFFICIENT,
}  # fmt: skip
PARTS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {
        "method": "lora", "lora_rank": 4, "lora_alpha": 8.0, "max_steps": 3, "eps": 1e-3,
        "learning_rate": 1e-2, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj"),
    },
    "freeze": {"freeze": ("*.layers.0.*", "*.gate.weight", "*embed*")},
}  # fmt: skip


def write_inputs(folder: Path, case: str) -> tuple[Path, Path]:
    """A tiny mixture and rows that are longer and shorter."""
    model = write_family(folder / "model", case)
    return model, write_dataset(folder / "data", LENGTHS, vocab=384)


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("method", PARTS)
@pytest.mark.parametrize("case", MIXTURES)
def test_loss_and_every_gradient_are_those_of_transformers(
    tmp_path: Path, case: str, method: str, packing: str
) -> None:
    """Of the step's rows as one batch, though they pass in three microbatches, packed or padded."""
    model, data = write_inputs(tmp_path, case)
    run = Run(tmp_path, model, data, **{**ONE_STEP, **PARTS[method], "packing": packing})
    run.go()
    expected = train_reference(model, data, run.config)
    steps = run.metrics()
    assert [m["loss"] for m in steps] == pytest.approx(expected.losses, abs=1e-5)
    assert [m["router_aux_loss"] for m in steps] == pytest.approx(expected.aux_losses, abs=1e-5)
    differences = relative_differences(read_params(run.config, "exp_avg"), expected.exp_avg)
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("case", MIXTURES)
def test_a_step_of_one_microbatch_is_the_loss_that_transformers_returns(
    tmp_path: Path, case: str
) -> None:
    """By the model's own config and class alone: labels in, loss out, backward."""
    model_dir, data = write_inputs(tmp_path, case)
    config = json.loads((model_dir / "config.json").read_text())
    told = {"output_router_logits": True, "router_aux_loss_coef": COEFFICIENT}
    (model_dir / "config.json").write_text(json.dumps({**config, **told}))
    settings = {**ONE_STEP, "microbatch_rows": 5, "packing": "off", "router_aux_loss_coef": None}
    run = Run(tmp_path, model_dir, data, **settings)
    run.go()
    dataset = TokenDataset.open(data)
    arrangement = Arrangement(seed=0, batch_rows=5, microbatch_rows=5)
    batch = make_microbatch([dataset.row(i) for i in range(5)], range(5), arrangement)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.model.embed_tokens.padding_idx = None
    mask = is_real(batch).view_as(batch.ids).long()
    output = model(input_ids=batch.ids, attention_mask=mask, labels=batch.labels)
    output.loss.backward()
    (step,) = run.metrics()
    whole = step["loss"] + COEFFICIENT * step["router_aux_loss"]
    assert whole == pytest.approx(float(output.loss.detach()), abs=1e-5)
    assert step["router_aux_loss"] == pytest.approx(float(output.aux_loss.detach()), abs=1e-5)
    grads = {name: param.grad for name, param in model.named_parameters()}
    expected = as_stored(model, {name: grad for name, grad in grads.items() if grad is not None})
    differences = relative_differences(read_params(run.config, "exp_avg"), expected)
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("case", MIXTURES)
def test_placement_never_changes_a_bit_of_balanced_experts(tmp_path: Path, case: str) -> None:
    """Graphs kept from forward or made again, state and inputs near or far, updates early or
    late."""
    model, data = write_inputs(tmp_path, case)
    common = {"max_steps": 3, "batch_rows": 3, "router_aux_loss_coef": COEFFICIENT}
    plain = Run(tmp_path / "a", model, data, clip_way="serial", recompute="all", **common)
    kept = Run(tmp_path / "b", model, data, state_tier="host", recompute="none", **common)
    late = Run(tmp_path / "c", model, data, clip_way="deferred", commit_every_steps=3,
               num_slots=2, **common)  # fmt: skip
    apart = Run(tmp_path / "d", model, data, activation_tier="nvme", recompute="all", **common)
    for run in (plain, kept, late, apart):
        run.go()
        assert_same_state(run.state(), plain.state())
        told = [m["router_aux_loss"] for m in run.metrics()]
        assert told == [m["router_aux_loss"] for m in plain.metrics()]


def make_rows(lengths: list[int]) -> list[tuple[Any, Any]]:
    ids = [torch.arange(length).numpy() for length in lengths]
    return [(one, one) for one in ids]


def random_routing(rows: list[int], experts: ExpertSpec) -> dict[int, Routed]:
    """What a router might make of each row's tokens, by the row."""
    torch.manual_seed(3)
    found = {}
    for i, length in enumerate(rows):
        logits = torch.randn(length, experts.count)
        found[i] = Routed(logits, logits.topk(experts.per_token).indices)
    return found


def of_microbatch(batch: Microbatch, rows: dict[int, Routed], experts: ExpertSpec) -> Routed:
    """The rows' routing where they lie in a microbatch; padding is routed to expert 0."""
    logits = torch.full((batch.ids.numel(), experts.count), 7.0)
    chosen = torch.zeros(batch.ids.numel(), experts.per_token, dtype=torch.int64)
    places = is_real(batch).nonzero().squeeze(1)
    logits[places] = torch.cat([rows[i].logits for i in batch.row_indices])
    chosen[places] = torch.cat([rows[i].chosen for i in batch.row_indices])
    return Routed(logits, chosen)


def gradients_by_row(batches: list[Microbatch], rows: dict[int, Routed]) -> tuple[float, Any]:
    """The loss of two layers that route alike, and each row's gradient of the first."""
    balance = Balance(EXPERTS, batches, torch.device("cpu"))
    routed = [of_microbatch(batch, rows, EXPERTS) for batch in batches]
    for _ in range(2):
        for m, one in enumerate(routed):
            balance.count(m, [one])
    grads: dict[int, torch.Tensor] = {}
    for m, (batch, one) in enumerate(zip(batches, routed, strict=True)):
        ((_, grad),) = balance.gradients(m, [one])
        assert not grad[~is_real(batch)].any()
        lengths = [len(rows[i].logits) for i in batch.row_indices]
        parts = torch.split(grad[is_real(batch)], lengths)
        grads.update(zip(batch.row_indices, parts, strict=True))
    return balance.loss(), grads


EXPERTS = ExpertSpec(
    count=6, per_token=2, intermediate_size=8, block="mlp", projections=("a", "b", "c"),
    balance=0.3,
)  # fmt: skip
LONG = [7, 5, 4, 3, 2]
PADDED = Arrangement(seed=0, batch_rows=5, microbatch_rows=5)
PACKED = Arrangement(seed=0, batch_rows=5, microbatch_rows=5, microbatch_tokens=21, multiple=8)


@pytest.mark.parametrize("arrangement", [PADDED, PACKED], ids=["padded", "packed"])
@pytest.mark.parametrize("groups", [[[0, 1, 2, 3, 4]], [[0, 3], [4, 1], [2]]])
def test_gradients_do_not_depend_on_how_rows_are_arranged(
    groups: list[list[int]], arrangement: Arrangement
) -> None:
    """Not by a bit; and they are autograd's, of the loss written out over the rows alone."""
    rows = random_routing(LONG, EXPERTS)
    made = make_rows(LONG)
    batches = [make_microbatch([made[i] for i in group], group, arrangement) for group in groups]
    loss, grads = gradients_by_row(batches, rows)
    logits = [torch.cat([rows[i].logits for i in range(5)]).requires_grad_() for _ in range(2)]
    both = torch.cat(logits)
    mean = both.softmax(-1).mean(0)
    share = torch.nn.functional.one_hot(both.topk(2).indices, 6).float().sum(1).mean(0)
    wanted = 6 * (mean * share).sum()
    (wanted_grad, _) = torch.autograd.grad(0.3 * wanted, logits)
    assert loss == pytest.approx(float(wanted.detach()), abs=1e-6)
    found = torch.cat([grads[i] for i in range(5)])
    torch.testing.assert_close(found, wanted_grad, rtol=1e-5, atol=1e-8)
    alone = [make_microbatch([made[i]], [i], PADDED) for i in range(5)]
    _, grads_alone = gradients_by_row(alone, rows)
    assert all(torch.equal(grads[i], grads_alone[i]) for i in range(5))


def test_the_run_decides_over_the_model_and_zero_is_none(tmp_path: Path) -> None:
    model, data = write_inputs(tmp_path, "mixtral")
    config = json.loads((model / "config.json").read_text())
    told = {**config, "output_router_logits": True, "router_aux_loss_coef": 0.02}

    def coefficient(asked: float | None, values: dict[str, Any]) -> float:
        (model / "config.json").write_text(json.dumps(values))
        settings = TrainConfig(model=str(model), dataset="d", router_aux_loss_coef=asked)
        experts = method_spec(read_model_spec(model), settings).experts
        assert experts is not None
        return experts.balance

    assert [coefficient(asked, told) for asked in (None, 0.0, 0.1)] == [0.02, 0.0, 0.1]
    assert [coefficient(asked, config) for asked in (None, 0.0, 0.1)] == [0.0, 0.0, 0.1]
    off = Run(tmp_path, model, data, **{**ONE_STEP, "router_aux_loss_coef": None})
    off.go()
    assert off.metrics()[0]["router_aux_loss"] is None


def test_a_coefficient_in_vain_is_refused() -> None:
    settings = TrainConfig(model="m", dataset="d", router_aux_loss_coef=0.1)
    with pytest.raises(BadSetting, match="family llama has no experts to balance"):
        method_spec(shape_spec("tiny"), settings)
    with pytest.raises(ValueError, match="router_aux_loss_coef is -0.1; wanted 0"):
        TrainConfig(model="m", dataset="d", router_aux_loss_coef=-0.1)


def test_an_order_that_never_sees_all_tokens_is_refused(tmp_path: Path) -> None:
    model, _ = write_inputs(tmp_path, "mixtral")
    settings = TrainConfig(
        model=str(model), dataset="d", router_aux_loss_coef=0.1, strategy="zero_infinity",
    )  # fmt: skip
    spec = method_spec(read_model_spec(model), settings)
    with pytest.raises(ValueError, match="zero_infinity ends one microbatch before"):
        make_plan(spec, settings, longest_row_tokens=30, box=BOX)


@pytest.mark.parametrize("packing", ["on", "off"])
def test_both_answers_of_a_preference_count(tmp_path: Path, packing: Packing) -> None:
    pairs = write_preferences(tmp_path / "pairs", [(9, 4), (6, 7), (5, 5)], vocab=384)
    config = TrainConfig(
        model="m", dataset=str(pairs), objective="dpo", batch_rows=3, microbatch_rows=2,
        packing=packing, microbatch_tokens=32 if packing == "on" else None,
    )  # fmt: skip
    batches = step_microbatches(open_rows(config, str(pairs)), Arrangement.of(config), step=1)
    real = [batch.ids.flatten()[is_real(batch)] for batch in batches]
    assert [len(one) for one in real] == [batch.num_tokens for batch in batches]
    assert sum(map(len, real)) == 9 + 4 + 6 + 7 + 5 + 5
