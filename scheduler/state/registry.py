"""The registry of live requests, by frontend and number, and by label."""

from collections.abc import Iterator

from quire.scheduler.state.sequence import Frontend, Request


class Registry:
    """Live requests and their frontends. A frontend without a live request is dropped, and its index used again."""

    def __init__(self) -> None:
        self.frontends: dict[bytes, Frontend] = {}
        self.by_index: list[Frontend | None] = []
        self.labels: dict[str, dict[int, Request]] = {}
        self._free_indexes: list[int] = []

    def frontend(self, identity: bytes) -> Frontend:
        """The frontend of this identity, added if it is new."""
        found = self.frontends.get(identity)
        if found is None:
            if not self._free_indexes:
                self._free_indexes.append(len(self.by_index))
                self.by_index.append(None)
            found = Frontend(identity, self._free_indexes.pop())
            self.frontends[identity] = found
            self.by_index[found.index] = found
        return found

    def find(self, identity: bytes, number: int) -> Request | None:
        frontend = self.frontends.get(identity)
        return None if frontend is None else frontend.requests.get(number)

    def of_frontend(self, identity: bytes) -> list[Request]:
        frontend = self.frontends.get(identity)
        return [] if frontend is None else list(frontend.requests.values())

    def of_label(self, label: str) -> list[Request]:
        return list(self.labels.get(label, {}).values())

    def requests(self) -> Iterator[Request]:
        for frontend in self.frontends.values():
            yield from frontend.requests.values()

    def add(self, request: Request) -> None:
        request.frontend.requests[request.number] = request
        self.labels.setdefault(request.label, {})[request.arrival] = request

    def remove(self, request: Request) -> None:
        frontend = request.frontend
        del frontend.requests[request.number]
        if not frontend.requests:
            del self.frontends[frontend.identity]
            self.by_index[frontend.index] = None
            self._free_indexes.append(frontend.index)
        same_label = self.labels[request.label]
        del same_label[request.arrival]
        if not same_label:
            del self.labels[request.label]
