"""Turns at few places: owners that wait get one after the other, however much each of them asks for."""

import asyncio
from collections import OrderedDict, deque


class FairTurns:
    """Places 0 .. `num_places` - 1. Touched by the event loop only."""

    def __init__(self, num_places: int) -> None:
        self._free = list(range(num_places))
        self._waiting: OrderedDict[object, deque[asyncio.Future[int]]] = OrderedDict()
        """Owner -> its calls in their order; the owner whose turn is next comes first."""

    async def take(self, owner: object) -> int:
        """A place, the lowest that is free, for one call of an owner. `give_back` frees it."""
        if self._free:
            self._free.sort()
            return self._free.pop(0)
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(turn.result())
            raise

    def give_back(self, place: int) -> None:
        """Give the place to the next call that waits."""
        while self._waiting:
            owner, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns  # behind all others
            if not turn.done():
                turn.set_result(place)
                return
        self._free.append(place)
