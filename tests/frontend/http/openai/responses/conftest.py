"""A clock of the store that tests move."""

import pytest

from quire.frontend.http.openai.responses import store as response_store
from quire.frontend.http.openai.responses.clocks import ClockReading


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """[seconds that pass, seconds by which somebody sets the wall clock]"""
    time = [1000.0, 0.0]
    monkeypatch.setattr(response_store, "read_clocks", lambda: ClockReading(1.7e9 + sum(time), time[0]))
    return time
