"""The clients' own names for their media, by which a request may leave out the bytes.

A name belongs to one API key, and to the settings and the `cache_salt` of its request; it leads to the key of a part in
the store and never replaces a digest. One frontend knows it: another one asks for the bytes again.
"""

from collections import OrderedDict

MAX_UUIDS = 64 << 10
"""Number of names that are kept; the one that was used longest ago goes first."""
MAX_UUID_CHARS = 256

Name = bytes
"""Hash of all that a name belongs to, and of the client's uuid."""


class UuidTable:
    """One per frontend, touched by the event loop only."""

    def __init__(self) -> None:
        self._keys: OrderedDict[Name, bytes] = OrderedDict()

    def add(self, name: Name, key: bytes) -> None:
        """From now on the name leads to the part of this key."""
        self._keys[name] = key
        self._keys.move_to_end(name)
        if len(self._keys) > MAX_UUIDS:
            self._keys.popitem(last=False)

    def find(self, name: Name) -> bytes | None:
        key = self._keys.get(name)
        if key is not None:
            self._keys.move_to_end(name)
        return key

    def remove(self, name: Name) -> None:
        """Remove a name whose part is not in the store any more."""
        self._keys.pop(name, None)
