"""Bodies that come together are decoded in threads, whichever of them is the first of its type."""

import subprocess
import sys

import pytest

TOGETHER = """
import sys, threading, time
from quire.frontend.http.decoding.decode import decode
from quire.frontend.http.openai.chat_types import ChatRequest
body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'
sys.setswitchinterval(1e-4)
found = []
def read(later):
    time.sleep(later)
    found.append(decode(body, ChatRequest).max_tokens)
threads = [threading.Thread(target=read, args=(later,)) for later in (0.0, float(sys.argv[1]))]
for one in threads: one.start()
for one in threads: one.join()
assert found == [2, 2], found
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("later", [0.0001, 0.0002, 0.0003, 0.0004, 0.0006])
def test_the_first_two_bodies_of_a_process_may_come_together(later: float) -> None:
    """msgspec 0.22 crashes in a second thread that finds a type's description half made."""
    command = [sys.executable, "-P", "-c", TOGETHER, str(later)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
