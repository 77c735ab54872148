"""Turns at few places go round those that wait."""

import asyncio
import random

import pytest

from quire.frontend.media.decode.turns import FairTurns


def test_who_asks_for_much_does_not_hold_up_who_asks_for_little() -> None:
    served: list[str] = []

    async def call(turns: FairTurns, owner: str) -> None:
        place = await turns.take(owner)
        served.append(owner)
        await asyncio.sleep(0)
        turns.give_back(place)

    async def run() -> None:
        turns = FairTurns(1)
        async with asyncio.TaskGroup() as group:
            for owner in "aaaaaaaabbc":
                group.create_task(call(turns, owner))

    asyncio.run(run())
    assert "".join(served) == "aabcabaaaaa"


def test_a_tenant_gets_its_turn_however_many_requests_another_one_has() -> None:
    served: list[str] = []

    async def call(turns: FairTurns, tenant: str, owner: str) -> None:
        place = await turns.take(owner, tenant)
        served.append(tenant + owner)
        await asyncio.sleep(0)
        turns.give_back(place)

    async def run() -> None:
        turns = FairTurns(1)
        async with asyncio.TaskGroup() as group:
            for tenant, owner in ("a1", "a1", "a1", "a2", "a3", "b4", "b4", "b5"):
                group.create_task(call(turns, tenant, owner))

    asyncio.run(run())
    assert served == ["a1", "a1", "b4", "a2", "b5", "a3", "b4", "a1"]


def test_idle_places_are_taken_from_the_lowest_on() -> None:
    async def run() -> None:
        turns = FairTurns(3)
        assert [await turns.take("a") for _ in range(3)] == [0, 1, 2]
        turns.give_back(2)
        turns.give_back(1)
        assert await turns.take("b") == 1

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(20))
def test_every_place_is_free_again_whoever_leaves(seed: int) -> None:
    chance = random.Random(seed)
    busy: set[int] = set()

    async def call(turns: FairTurns, owner: int) -> None:
        place = await turns.take(owner)
        assert place not in busy
        busy.add(place)
        try:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        finally:
            busy.remove(place)
            turns.give_back(place)

    async def run() -> None:
        turns = FairTurns(2)
        calls = [asyncio.create_task(call(turns, chance.randrange(3))) for _ in range(30)]
        while not all(one.done() for one in calls):
            chance.choice(calls).cancel()
            await asyncio.sleep(0)
        assert {await turns.take(1), await turns.take(2)} == {0, 1}

    asyncio.run(run())
