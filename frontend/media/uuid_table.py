"""The clients' own names for their media, by which a request may leave out the bytes.

A name belongs to one API key and one `cache_salt`; it leads to a digest and never replaces it. One frontend knows it:
another one asks for the bytes again.
"""

from collections import OrderedDict

MAX_UUIDS = 64 << 10
"""Number of names that are kept; the one that was used longest ago goes first."""
MAX_UUID_CHARS = 256

Name = tuple[str, str, str]
"""API key's name, `cache_salt`, uuid."""


class UuidTable:
    """One per frontend, touched by the event loop only."""

    def __init__(self) -> None:
        self._digests: OrderedDict[Name, bytes] = OrderedDict()

    def add(self, name: Name, digest: bytes) -> None:
        """From now on the name leads to this digest."""
        self._digests[name] = digest
        self._digests.move_to_end(name)
        if len(self._digests) > MAX_UUIDS:
            self._digests.popitem(last=False)

    def find(self, name: Name) -> bytes | None:
        digest = self._digests.get(name)
        if digest is not None:
            self._digests.move_to_end(name)
        return digest

    def remove(self, name: Name) -> None:
        """Remove a name whose digest is not in the store any more."""
        self._digests.pop(name, None)
