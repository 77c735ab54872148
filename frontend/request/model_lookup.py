"""The models of this frontend, found by the names that requests give."""

import asyncio
from collections.abc import Callable, Sequence

from quire.frontend.errors import unknown_model
from quire.frontend.request.served_model import ServedModel

Maker = Callable[[], ServedModel]
"""Reads one model's files. It may take a second, and is called in a thread."""


class _Entry:
    """One model, made when it is first needed."""

    def __init__(self, make: Maker) -> None:
        self.model: ServedModel | None = None
        self.make = make
        self._making = asyncio.Lock()

    async def get(self) -> ServedModel:
        if self.model is None:
            async with self._making:
                if self.model is None:
                    model = await asyncio.to_thread(self.make)
                    await model.start()
                    self.model = model
        return self.model


class ModelLookup:
    """Models by served name. The first is made at once: no request waits for it. Others are when first asked for."""

    def __init__(self, makers: Sequence[tuple[Sequence[str], Maker]]) -> None:
        """`makers`: the names of each model and what makes it. Raises what the first one raises."""
        self._entries: dict[str, _Entry] = {}
        for names, make in makers:
            entry = _Entry(make)
            self._entries |= dict.fromkeys(names, entry)
        self._first = next(iter(self._entries.values()))
        self.default = self._first.model = self._first.make()
        """The model that is meant where a request names none."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may give, those of the first model first."""
        return tuple(self._entries)

    async def find(self, name: str | None) -> ServedModel:
        """The model of this name. Raises `RequestError` (NOT_FOUND)."""
        if name is None:
            return self.default
        entry = self._entries.get(name)
        if entry is None:
            raise unknown_model(name, self._entries)
        return await entry.get()

    async def start(self) -> None:
        """Start the children of the first model. Raises `SandboxLost`."""
        await self.default.start()

    async def close(self) -> None:
        """End the children of every model that was made."""
        for entry in {id(entry): entry for entry in self._entries.values()}.values():
            if entry.model is not None:
                await entry.model.close()
