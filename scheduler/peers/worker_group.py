"""The handshake of a worker group: which ranks sent HELLO, which are READY, and that they agree. No I/O."""

from quire.proto.messages.plans import GroupFacts, Ready, Welcomed, WorkerHello
from quire.proto.messages.requests import PROTOCOL_VERSION
from quire.scheduler.state.events import GroupReady


class GroupError(RuntimeError):
    """A worker cannot belong to the group; the text is sent to it as the reason to stop."""


class WorkerGroup:
    """Ranks of the newest epoch. A HELLO of a higher epoch starts a new group; one of a lower epoch is refused."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.epoch = 0
        self.complete = False
        self.reporter: int | None = None
        """The rank whose results answer plans; None before the group is ready."""
        self._peers: dict[bytes, int] = {}
        self._ready: dict[int, Ready] = {}

    @property
    def peers(self) -> tuple[bytes, ...]:
        """Socket identities in rank order."""
        return tuple(sorted(self._peers, key=self._peers.__getitem__))

    def rank_of(self, identity: bytes) -> int | None:
        """The rank behind a socket, or None for a stranger or a worker of a past epoch."""
        return self._peers.get(identity)

    def hello(self, identity: bytes, hello: WorkerHello) -> Welcomed:
        """Raises `GroupError` when the worker must stop."""
        if hello.protocol_version != PROTOCOL_VERSION:
            raise GroupError(
                f"protocol version {hello.protocol_version} of the worker is not {PROTOCOL_VERSION} of the scheduler"
            )
        if hello.world_size != self.world_size or not 0 <= hello.rank < self.world_size:
            raise GroupError(f"rank {hello.rank} of {hello.world_size} does not fit a group of {self.world_size}")
        if hello.epoch < self.epoch or (hello.epoch == self.epoch and hello.rank in self._peers.values()):
            raise GroupError(
                f"epoch {hello.epoch} rank {hello.rank} is taken or past; the group is at epoch {self.epoch}"
            )
        if hello.epoch > self.epoch:
            self.epoch = hello.epoch
            self.complete = False
            self.reporter = None
            self._peers.clear()
            self._ready.clear()
        self._peers[identity] = hello.rank
        return Welcomed(self.epoch)

    def ready(self, identity: bytes, ready: Ready) -> GroupReady | None:
        """The event once the last rank is ready. Raises `GroupError` for a group that cannot be, or that disagrees."""
        rank = self._peers.get(identity)
        if rank is None or ready.epoch != self.epoch or ready.rank != rank:
            raise GroupError(
                f"READY of rank {ready.rank} in epoch {ready.epoch} from a worker that is not of this group"
            )
        self._check_shape(ready.group)
        for other in self._ready.values():
            if other.digest != ready.digest or other.facts != ready.facts or other.group != ready.group:
                raise GroupError(
                    f"rank {rank} disagrees with rank {other.rank}: digest {ready.digest} and {other.digest}, "
                    f"facts {ready.facts} and {other.facts}, {ready.group} and {other.group}"
                )
        self._ready[rank] = ready
        if len(self._ready) < self.world_size:
            return None
        self.complete = True
        self.reporter = ready.group.reporter
        return GroupReady(self.epoch, ready.group, ready.facts)

    def _check_shape(self, group: GroupFacts) -> None:
        """Raises `GroupError` unless its stages divide the ranks, one of them reports and a plan may be in flight."""
        is_whole = group.num_stages > 0 and group.world_size % group.num_stages == 0
        reports = 0 <= group.reporter < group.world_size
        if group.world_size != self.world_size or not is_whole or not reports or group.max_in_flight < 1:
            raise GroupError(f"{group} is no shape of a group of {self.world_size}")

    @property
    def all_phases(self) -> tuple[tuple[int, str, float], ...]:
        """(rank, phase, seconds) of every rank that is ready."""
        ready = sorted(self._ready.items())
        return tuple((rank, phase, seconds) for rank, one in ready for phase, seconds in one.phases)

    @property
    def memory(self) -> tuple[tuple[int, str, int], ...]:
        """(rank, kind, bytes) of every rank that is ready."""
        ready = sorted(self._ready.items())
        return tuple((rank, kind, num_bytes) for rank, one in ready for kind, num_bytes in one.memory)

    @property
    def phases(self) -> tuple[tuple[str, float], ...]:
        """Start-up phases of the reporter, for the log; none before the group is ready."""
        return () if self.reporter is None else self._ready[self.reporter].phases
