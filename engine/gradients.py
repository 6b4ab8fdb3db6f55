"""Final gradients of a step: rounded once, counted in the norm, kept until their update."""

import torch
from torch import Tensor

from .clip import round_and_square
from .model import RecordLayout
from .workspace import Workspace


class Gradients:
    """The final gradients of one step's records. Norm, factor and update all read these values."""

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self._squares: dict[str, Tensor] = {}

    def finish(self, layout: RecordLayout, grad: Tensor) -> Tensor:
        """Round the flat fp32 sum to the compute dtype, count it in the norm and bring it home.

        What is returned is valid until the next gradient is finished or asked for.
        """
        work = self._work
        home = work.grad_homes.get(layout.name)
        resident = work.resident_grads.get(layout.name)
        if resident is not None:
            kept = resident.tensor(work.dtype, grad.numel())
            self._squares[layout.name] = round_and_square(grad, kept)
            return kept
        buffer = None
        kept = grad
        if work.dtype != torch.float32:
            buffer, _ = work.grad_buffers.take()  # compute is in order with its last use anyway
            buffer.free.order()
            kept = buffer.device.tensor(work.dtype, grad.numel())
        self._squares[layout.name] = round_and_square(grad, kept)
        if home is not None:
            landed = work.transfer.to_host(
                kept,
                home.tensor(work.dtype, kept.numel()),
                after=work.transfer.fence(),
                urgent=True,
            )
            work.grad_landed[layout.name] = landed
            if buffer is None:
                landed.order()  # the accumulator is used again for the next layer
            else:
                buffer.free = landed
        return kept

    def kept(self, layout: RecordLayout, *, early: bool = False) -> Tensor:
        """The final gradient of a record, on the device, of its components' length, until the next
        one is asked for.

        It comes up beside what compute has been given, as soon as its buffer is free.
        `early`: before the end of backward, when a table's accumulator still holds it.
        """
        work = self._work
        resident = work.resident_grads.get(layout.name)
        if resident is not None:
            return resident.tensor(work.dtype, layout.num_elements)
        home = work.grad_homes.get(layout.name)
        rows: Tensor | None = None
        if early or home is None:  # a table: its accumulator holds it
            assert work.table_grad is not None
            rows = work.table_rows(layout, work.table_grad).view(-1)
            if rows.dtype == work.dtype and rows.numel() == layout.num_elements:
                return rows
        buffer, used = work.grad_buffers.take()
        buffer.free.order()
        flat = buffer.device.tensor(work.dtype, layout.num_elements)
        if rows is not None:
            flat[: rows.numel()] = rows
            flat[rows.numel() :] = 0
            return flat
        assert home is not None
        count = layout.num_params if layout.kind == "head" else layout.num_elements
        flat[count:] = 0
        work.transfer.to_device(
            home.tensor(work.dtype, count),
            flat[:count],
            after=(buffer.free, used, work.grad_landed[layout.name]),
            urgent=True,
        ).order()
        return flat

    def norm(self) -> Tensor:
        """The global norm, a float64 scalar on the device: records added in the model's order."""
        total = torch.zeros((), dtype=torch.float64, device=self._work.device)
        for layout in self._work.spec.trained:
            total = total + self._squares[layout.name]
        return total.sqrt()

    def own_norm(self, layout: RecordLayout) -> Tensor:
        """Norm of a layer's gradient alone; the pieces of a table count together."""
        pieces = [layout]
        if layout.kind in ("embedding", "head"):
            pieces = list(self._work.spec.of_kind(layout.kind))
        return torch.stack([self._squares[piece.name] for piece in pieces]).sum().sqrt()
