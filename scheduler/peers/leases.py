"""Leases of the peers on the request socket: connected peers and when each last sent something. No I/O."""

from quire.proto.messages.message import PeerRole
from quire.scheduler.peers.own_time import OwnTime


class Leases:
    """Roles and last messages of the peers. A frontend is alive for `seconds` of our own time after its last message.

    The supervisor needs no beat: its death ends everybody.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._time = OwnTime()
        self._roles: dict[bytes, PeerRole] = {}
        self._last_seen: dict[bytes, float] = {}

    def join(self, identity: bytes, role: PeerRole, now: float) -> None:
        self._roles[identity] = role
        self._last_seen[identity] = self._time.at(now)

    def touch(self, identity: bytes, now: float) -> bool:
        """Renew the lease: the peer sent a message. False for a peer that never sent HELLO."""
        if identity not in self._roles:
            return False
        self._last_seen[identity] = self._time.at(now)
        return True

    def leave(self, identity: bytes) -> None:
        self._roles.pop(identity, None)
        self._last_seen.pop(identity, None)

    def role(self, identity: bytes) -> PeerRole | None:
        return self._roles.get(identity)

    @property
    def num_frontends(self) -> int:
        return sum(role == "frontend" for role in self._roles.values())

    @property
    def peers(self) -> tuple[bytes, ...]:
        return tuple(self._roles)

    def expired(self, now: float) -> list[bytes]:
        """Frontends whose lease ended. Call often."""
        own = self._time.at(now)
        return [
            identity
            for identity, seen in self._last_seen.items()
            if self._roles[identity] == "frontend" and own - seen > self._seconds
        ]
