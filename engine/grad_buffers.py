"""Room on the device for final gradients that have no home there, buffers used in turn."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.storage import DeviceSlot, Fence


@dataclass(slots=True, eq=False)
class GradBuffer:
    """One buffer: its last copy, and the point at which compute has let go of it; None while it is
    in use."""

    device: DeviceSlot
    free: Fence = field(default_factory=Fence)
    used: Fence | None = field(default_factory=Fence)


class GradBuffers:
    """Hands out the buffer that has not been used for longest.

    A gradient that comes up waits for the last use of its buffer, and for no other work. So whoever
    has given compute that use lets go at once; whoever asks for the next buffer has done so.
    """

    def __init__(self, buffers: Sequence[GradBuffer], fence: Callable[[], Fence]) -> None:
        """`fence` gives the point up to which compute has been given work."""
        self._buffers = deque(buffers)
        self._fence = fence

    def take(self) -> tuple[GradBuffer, Fence]:
        """The next buffer, in use from now on, and the point at which compute let go of it."""
        self.let_go()
        self._buffers.rotate(-1)
        buffer = self._buffers[-1]
        used, buffer.used = buffer.used, None
        assert used is not None
        return buffer, used

    def let_go(self) -> None:
        """What compute was given so far is the last that uses the buffer in use, if one is."""
        buffer = self._buffers[-1]
        if buffer.used is None:
            buffer.used = self._fence()

    def drop(self) -> None:
        """Let go of the memory; none is handed out any more."""
        self._buffers.clear()
