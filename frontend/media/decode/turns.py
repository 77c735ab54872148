"""Turns at few places: tenants that wait get one after the other, and the owners of each, however much one asks for."""

import asyncio
from collections import OrderedDict, deque


class FairTurns:
    """Places 0 .. `num_places` - 1. Touched by the event loop only."""

    def __init__(self, num_places: int) -> None:
        self._free = list(range(num_places))
        self._waiting: OrderedDict[str, OrderedDict[object, deque[asyncio.Future[int]]]] = OrderedDict()
        """Tenant -> owner -> its calls in their order; who has the next turn comes first."""

    async def take(self, owner: object, tenant: str = "") -> int:
        """A place, the lowest that is free, for one call of an owner of a tenant. `give_back` frees it."""
        if self._free:
            self._free.sort()
            return self._free.pop(0)
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, OrderedDict()).setdefault(owner, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(turn.result())
            raise

    def give_back(self, place: int) -> None:
        """Give the place to the next call that waits."""
        while self._waiting:
            tenant, owners = self._waiting.popitem(last=False)
            owner, turns = owners.popitem(last=False)
            turn = turns.popleft()
            if turns:
                owners[owner] = turns  # behind all others
            if owners:
                self._waiting[tenant] = owners
            if not turn.done():
                turn.set_result(place)
                return
        self._free.append(place)
