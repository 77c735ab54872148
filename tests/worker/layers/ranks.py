"""Ranks as threads, and layers built on them out of one seed."""

import threading

import torch
from parts.clock import GUARD

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.weights.dummy import fill_dummy

CPU = torch.device("cpu")
DENSE = everywhere(DenseScheme())


class ThreadGroup(SingleGroup):
    """Ranks as threads of this process, meeting at a barrier."""

    def __init__(self, rank, size, barrier, board):
        self.rank, self.size, self._barrier, self._board = rank, size, barrier, board

    def _exchange(self, tensor):
        self._board[self.rank] = tensor.clone()
        self._barrier.wait(GUARD)
        tensors = list(self._board)
        self._barrier.wait(GUARD)
        return tensors

    def all_reduce(self, tensor):
        return tensor.copy_(torch.stack(self._exchange(tensor)).sum(0))

    def all_gather(self, tensor):
        return torch.cat(self._exchange(tensor), -1)


def on_ranks(size, build, call, scheme_for=DENSE):
    """`call(layer)` on each of `size` ranks, the layers filled from one seed; and the layers."""
    board, barrier = [None] * size, threading.Barrier(size)
    layers, results = [None] * size, [None] * size

    def run(rank):
        group = ThreadGroup(rank, size, barrier, board) if size > 1 else SingleGroup()
        layers[rank] = build(BuildContext(group, CPU, torch.float32, scheme_for))
        fill_dummy(layers[rank], 0, CPU)
        results[rank] = call(layers[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results, layers


def values(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def context(rank=0, size=1):
    group = ThreadGroup(rank, size, None, None) if size > 1 else SingleGroup()
    return BuildContext(group, CPU, torch.float32, DENSE)
