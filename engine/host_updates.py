"""Records that the processor updates at home: their updates under way, and waiting for them."""

from collections.abc import Callable
from concurrent.futures import Future

from torch import Tensor

from .adamw import AdamScalars
from .host_optimizer import HostOptimizer, HostOptimizerStats
from .model import RecordLayout
from .state import state_views
from .weight_cache import CachedWeights
from .workspace import Workspace


class HostUpdates:
    """What is asked of the host optimizer for one workspace.

    A record's state may be read, its gradient's home written, only after `wait`: its next visit
    is read behind it, and its gradient comes later still.
    """

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self._optimizer = work.closing(HostOptimizer()) if work.plan.on_host else None
        self._under_way: dict[str, Future[None]] = {}

    def submit(
        self,
        layout: RecordLayout,
        factor: float | Tensor,
        scalars: AdamScalars,
        *,
        is_guess: bool = False,
    ) -> None:
        """Update a record that lives in host memory from its gradient there, in the background.

        What `is_guess` goes to the second version and may yet be undone.
        """
        assert self._optimizer is not None
        work, name = self._work, layout.name
        cached = work.cached.get(name)
        home = work.homes[name]
        before = home.now
        target = home.take_update(is_guess=True) if is_guess else home.take_final()
        record = work.records[name]
        self._under_way[name] = self._optimizer.submit(
            state_views(target, record),
            work.grad_homes[name].tensor(work.dtype, layout.num_elements),
            factor,
            scalars,
            source=None if target is before else state_views(before, record),
            after=work.grad_landed[name],
            then=None if cached is None else self._bring_up(name, cached),
        )
        if cached is not None:
            cached.update = self._under_way[name]

    def _bring_up(self, name: str, cached: CachedWeights) -> Callable[[], None]:
        """Renew the weights on the device, which nothing that was computed so far still reads."""
        work, computed = self._work, self._work.transfer.fence()
        return lambda: cached.bring_up(work.homes[name].now, work.transfer, computed)

    def wait(self, name: str) -> None:
        """Wait for the record's last update; raises what ended it early."""
        under_way = self._under_way.get(name)
        if under_way is not None:
            under_way.result()

    def wait_all(self) -> None:
        """Wait for every update."""
        for name in self._under_way:
            self.wait(name)

    @property
    def stats(self) -> HostOptimizerStats:
        """What has been updated so."""
        return HostOptimizerStats() if self._optimizer is None else self._optimizer.stats
