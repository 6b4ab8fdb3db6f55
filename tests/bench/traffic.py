"""What a step must move over each link, from parameter counts alone, beside what was counted."""

from collections.abc import Sequence
from typing import Any

from headrace.engine import ModelSpec

STATE_BYTES = 12  # per parameter: the fp32 master in two halves and two fp32 moments
MASTER_BYTES = 4  # both halves, which fp32 compute streams
GRAD_BYTES = 4


def formula_bytes(
    spec: ModelSpec, *, kept_layers: int, speculative: bool, redone: bool, keep_grads: bool
) -> dict[str, int]:
    """Payload bytes per link of one step in fp32 compute with all state on NVMe.

    Weights are read for forward, and for the head and every recomputed layer once more; the update
    reads and writes the whole state. A speculative step updates in the backward visit, which then
    reads the state alone; when clipping bites, everything is updated again (`redone`). Kept
    gradients of all but the embedding go to host memory, and come back for an update that is made
    after the backward visit.
    """
    embedding, layers, norm, head = (
        sum(record.num_params for record in spec.of_kind(kind))
        for kind in ("embedding", "layer", "norm", "head")
    )
    everything = spec.num_params
    recomputed = layers * (spec.num_layers - kept_layers) // spec.num_layers
    weights = MASTER_BYTES * (embedding + layers + head)
    if not speculative:
        weights += MASTER_BYTES * (norm + recomputed)
    state = STATE_BYTES * everything * (2 if redone else 1)
    grads = GRAD_BYTES * (everything - embedding) if keep_grads else 0
    returned = GRAD_BYTES * head if speculative and keep_grads else 0
    if redone or not speculative:
        returned += grads
    return {
        "nvme_read": weights + state,
        "nvme_write": state,
        "h2d": weights + state + returned,
        "d2h": state + grads,
    }


def compare_traffic(
    spec: ModelSpec, plan: dict[str, Any], steps: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Counted and wanted payload bytes of every step, by link, and the largest relative deviation.

    `plan` and `steps` are the data of a run's plan event and of its metrics events; the plan must
    name its clip way ("serial" or "speculative").
    """
    rows: dict[str, Any] = {}
    speculative = plan["clip_way"] == "speculative"
    for step in steps:
        expected = formula_bytes(
            spec,
            kept_layers=len(plan["keep_layers"]),
            speculative=speculative,
            redone=speculative and plan["keep_grads"] and step["clip_factor"] < 1,
            keep_grads=plan["keep_grads"],
        )
        for link, wanted in expected.items():
            counted = step["links"][link]["payload_bytes"]
            row = rows.setdefault(link, {"counted": [], "formula": [], "largest_deviation": 0.0})
            row["counted"].append(counted)
            row["formula"].append(wanted)
            row["largest_deviation"] = max(row["largest_deviation"], abs(counted / wanted - 1))
    return rows
