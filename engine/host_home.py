"""Where a record lives in host memory: one version of its state, or two, so that one can be undone.

With two, an update made before the norm is known goes to the other version and becomes the state
only when the norm has turned out well. The same idea as the store's generations, in memory; Lian
et al., "SuperOffload" (2025), speculate likewise but undo by arithmetic.
"""

from dataclasses import dataclass, field

from headrace.storage import Fence, HostSlot


@dataclass(slots=True, eq=False)
class HostHome:
    """One record's home: `versions` has one slot or two, `live` says which is the state."""

    versions: list[HostSlot]
    live: int = 0
    guess: bool = False  # the other version holds an update that may yet be undone
    written: Fence = field(default_factory=Fence)  # the last copy into the home has ended

    @property
    def now(self) -> HostSlot:
        """The state, guesses left out."""
        return self.versions[self.live]

    @property
    def newest(self) -> HostSlot:
        """The state as the next step will have it if the guess holds."""
        return self._other if self.guess else self.now

    @property
    def _other(self) -> HostSlot:
        return self.versions[(self.live + 1) % len(self.versions)]

    def take_update(self, *, is_guess: bool) -> HostSlot:
        """Where an update is to be written; one that is no guess is the state from now on."""
        target = self._other
        self.guess = is_guess
        if not is_guess:
            self.live = self.versions.index(target)
        return target

    def take_final(self) -> HostSlot:
        """Where the processor writes an update that will not be undone: the state, in place. A
        guess is forgotten."""
        self.guess = False
        return self.now

    def settle(self, *, right: bool) -> None:
        """A guess becomes the state, or is forgotten."""
        if self.guess and right:
            self.live = (self.live + 1) % len(self.versions)
        self.guess = False
