"""What Agent-lightning's store goes on showing: the newest rollouts of the policy that is being played, and no more."""

from collections import deque

from orchestrator.rollouts.compat import InMemoryLightningStore, forget_resources, forget_rollout

LIMIT = 1000
"""Rollouts of one policy, about 8 kB each."""
AT_ONCE = 8
"""Forgetting a few at every end costs no attempt more than a few milliseconds."""


class Remembered:
    """Forgets in the store what belongs to earlier policies.

    The next policy is only played after everything of its predecessors is journaled, so what leaves the store here is
    known elsewhere, and the store's size depends neither on the number of batches nor on that of their rollouts.
    """

    def __init__(self, store: InMemoryLightningStore, *, limit: int = LIMIT) -> None:
        """Up to ``limit`` rollouts of the policy that is being played are kept."""
        self._store = store
        self._limit = limit
        self._resources_id: str | None = None
        self._current: deque[str] = deque()
        self._old_rollouts: deque[str] = deque()
        self._old_resources: deque[str] = deque()

    def add(self, rollout_id: str, resources_id: str) -> None:
        """A rollout is over; so are all those under other resources than its own."""
        if resources_id != self._resources_id:
            if self._resources_id is not None:
                self._old_resources.append(self._resources_id)
            self._old_rollouts += self._current
            self._current.clear()
            self._resources_id = resources_id
        self._current.append(rollout_id)

    async def shrink(self) -> None:
        """Forgets a few rollouts of earlier policies, then the policies, and the oldest ones over the limit."""
        for _ in range(AT_ONCE):
            if self._old_rollouts:
                await forget_rollout(self._store, self._old_rollouts.popleft())
            elif self._old_resources:
                await forget_resources(self._store, self._old_resources.popleft())
            elif len(self._current) > self._limit:
                await forget_rollout(self._store, self._current.popleft())
            else:
                return
