"""The tree of cached prefixes at one instant, for `PrefixReply`. It is made on request."""

import numpy as np

from quire.proto.messages.introspection import MAX_STATUS_BLOCKS, PrefixQuery, PrefixReply
from quire.proto.transport.wire import ints
from quire.scheduler.introspection.view import View


def prefixes(question: PrefixQuery, view: View) -> PrefixReply:
    """Each block's place in the tree, and its readers. Without a living group there are none."""
    if view.group_epoch is None:
        return PrefixReply(question.query, b"", b"")
    memory = view.group_epoch.memory
    num_blocks = min(memory.pool.num_blocks, MAX_STATUS_BLOCKS)
    readers = np.minimum(memory.pool.readers(num_blocks), np.iinfo(np.uint16).max).astype("<u2")
    return PrefixReply(question.query, ints(memory.index.parents(num_blocks)), readers.tobytes())
