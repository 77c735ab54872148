"""The end of an engine's processes, a tier of roles after the other."""

from collections.abc import Collection

from quire.deploy.supervisor.process import ProcessRole

STOP_ORDER: tuple[ProcessRole, ...] = ("frontend", "scheduler", "worker")
"""Roles in the order of their SIGTERM: first those that hold clients, last those that hold nothing of anybody's."""


class Shutdown:
    """SIGTERM in `STOP_ORDER`, a tier once the one before has left or had its seconds; the last one waits for all."""

    def __init__(self, now: float, grace_seconds: float, tier_seconds: float, drained_until: float = 0.0) -> None:
        """`drained_until`: time until which frontends may end what they have open before anybody else is told to."""
        self._grace_seconds = grace_seconds
        self._tier_seconds = tier_seconds
        self._drained_until = drained_until
        self._deadline = now + grace_seconds
        self._tier_end = now
        self._num_sent = 0

    def roles_due(self, living: Collection[ProcessRole], now: float, hurry: bool) -> list[ProcessRole]:
        """Roles that get their SIGTERM now, where processes of the `living` roles are left. `hurry`: wait for none."""
        due: list[ProcessRole] = []
        while self._num_sent < len(STOP_ORDER) and (hurry or self._is_tier_over(living, now)):
            due.append(STOP_ORDER[self._num_sent])
            self._num_sent += 1
            self._tier_end = min(self._deadline, now + self._tier_seconds)
            if due[-1] == "frontend" and self._drained_until > now:
                self._tier_end = max(self._tier_end, self._drained_until)
                self._deadline = self._tier_end + self._grace_seconds
            elif due[-1] == "scheduler":
                self._deadline = min(self._deadline, now + self._grace_seconds)
        return due

    def is_over(self, living: Collection[ProcessRole], now: float, hurry: bool) -> bool:
        """Every role got its SIGTERM, and everybody has left or had the time for it: what is left may be killed."""
        return self._num_sent == len(STOP_ORDER) and (hurry or not living or now >= self._deadline)

    def _is_tier_over(self, living: Collection[ProcessRole], now: float) -> bool:
        return self._num_sent == 0 or now >= self._tier_end or STOP_ORDER[self._num_sent - 1] not in living
