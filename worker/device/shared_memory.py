"""Memory that processes of one machine map together: without a name, so that nothing is left by any end of them."""

import mmap
import os

from torch._C._distributed_c10d import Store


def shared_memory(store: Store, key: str, is_owner: bool, num_bytes: int) -> mmap.mmap:
    """The memory, zeros at first, that all who give the same key of the store get; one of them is its owner.

    It lives as long as one of them has it mapped. Raises OSError where the owner's descriptors may not be opened, as
    without /proc, or by another user.
    """
    if is_owner:
        descriptor = os.memfd_create("quire", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_bytes)
        store.set(key, f"/proc/{os.getpid()}/fd/{descriptor}")
    else:
        descriptor = os.open(store.get(key).decode(), os.O_RDWR | os.O_CLOEXEC)
    memory = mmap.mmap(descriptor, num_bytes)
    if not is_owner:
        os.close(descriptor)
    return memory
