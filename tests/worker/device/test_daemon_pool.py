"""A worker that finds no thread for a grammar goes on: another death would only find the same."""

import threading

import pytest

from quire.worker.device.daemon_pool import DaemonPool


@pytest.mark.parametrize("num_left", [0, 1, 2])
def test_work_is_done_with_the_threads_that_can_be_started(monkeypatch: pytest.MonkeyPatch, num_left: int) -> None:
    start, left = threading.Thread.start, [None] * num_left

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    pool, own = DaemonPool("test", 2), threading.get_ident()
    assert pool.submit(pow, 2, 3).result() == 8
    assert (pool.submit(threading.get_ident).result() == own) == (num_left == 0)
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result()
    monkeypatch.undo()
    assert pool.submit(threading.get_ident).result() != own
