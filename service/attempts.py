"""How often one address may fail to show a good token: some times at once, then now and then.

Good tokens pass whatever else comes from their address, so that nobody can lock the owner out.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

AT_ONCE = 10
SECONDS_EACH = 6.0  # until one more attempt may fail
MAX_ADDRESSES = 10_000  # remembered; the one that failed longest ago is forgotten first


class FailedAttempts:
    """Counts failures by address. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By address: when everything that it may fail will be there again, on the clock.
        self._whole_at: OrderedDict[str, float] = OrderedDict()

    def count(self, address: str) -> float:
        """Note a failure; 0, or for how many seconds no other is taken when there were too many.

        One that is not taken does not lengthen the wait.
        """
        now = self._clock()
        whole_at = max(self._whole_at.get(address, now), now) + SECONDS_EACH
        wait = whole_at - now - AT_ONCE * SECONDS_EACH
        if wait > 0:
            return wait
        self._whole_at[address] = whole_at
        self._whole_at.move_to_end(address)
        if len(self._whole_at) > MAX_ADDRESSES:
            self._whole_at.popitem(last=False)
        return 0.0
