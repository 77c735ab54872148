"""Learned numbers of a tower, the same for every item."""

from quire.worker.build_context import BuildContext
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule


class Vector(ShardedModule):
    """Learned numbers [size], whole on every rank."""

    def __init__(self, context: BuildContext, size: int) -> None:
        super().__init__()
        self.declare("weight", context.dtype, (Part("", (whole(size),)),))
