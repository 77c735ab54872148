"""Deaths while pictures are encoded, read and answered: a pause for those who sent them, and nothing sent again."""

import contextlib
import functools
import os
import re
import signal
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from noise_pictures import picture, png
from parts.clock import GUARD, eventually
from parts.engine import descendants
from tiny_qwen3_vl import write_checkpoint

from quire.proto.api import Chat, ChatMessage, Delta, GenerateRequest, ImagePart, RequestError, TextPart

LONG = 400
ENGINES = {
    "roomy": (),
    "small steps": ("--max-num-batched-tokens", "8", "--max-num-encoder-patches", "16", "--max-num-seqs", "4"),
}
CHATS = (
    ("what do you see", *(picture(64 + 32 * n, 96, n) for n in range(8)), "in this picture " * 20),
    (picture(96, 64, 20), "and", picture(96, 64, 21), "in that one", picture(96, 64, 20)),
    ("a quire is a gathering of pages",),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("vision"))


def asked(content, salt):
    """`salt`: nothing is found in a cache that another one has left."""
    parts = [TextPart(one) if isinstance(one, str) else ImagePart(data=png(one)) for one in content]
    chat = Chat([ChatMessage("user", parts)])
    return GenerateRequest(input=chat, temperature=0, max_tokens=LONG, ignore_eos=True, cache_salt=salt)


class Reader:
    """A stream read in the background."""

    def __init__(self, pool, engine, content, salt):
        self.tokens = []
        self._events = engine.client.stream(asked(content, salt))
        self._done = pool.submit(self._read)

    def _read(self):
        for event in self._events:
            if isinstance(event, Delta):
                self.tokens += event.token_ids

    @property
    def is_done(self):
        return self._done.done()

    def result(self):
        self._done.result(GUARD)
        return self.tokens


def amid_pictures(engine, readers):
    """A prompt is computed as far as some picture of it."""
    try:
        outputs = engine.client.status().outputs
    except RequestError as error:
        if error.reason != "SCHEDULER_LOST":  # one that stood still on a busy machine
            raise
        return False
    return any(20 < one.num_scheduled < one.num_prompt - 100 for one in outputs)


def amid_answers(engine, readers):
    return all(len(reader.tokens) > 20 for reader in readers)


def first_amid_its_answer(engine, readers):
    """The one that has most pictures."""
    return len(readers[0].tokens) > 20 and not readers[0].is_done


def caught(engine, pool, moment, salt):
    """Streams in such a moment, which a busy machine may miss, and then are sent again."""
    until = time.monotonic() + GUARD
    while time.monotonic() < until:
        readers = [Reader(pool, engine, content, f"{salt} {time.monotonic()}") for content in CHATS]
        while not all(reader.is_done for reader in readers):  # without a pause: pictures do not wait
            if moment(engine, readers):
                return readers
    raise AssertionError(f"no {salt} was seen")


CASES = [
    ("small steps", "worker", amid_pictures),
    ("small steps", "worker", amid_answers),
    ("small steps", "scheduler", amid_pictures),
    ("small steps", "scheduler", amid_answers),
    ("roomy", "worker", amid_answers),
    ("roomy", "scheduler", amid_answers),
]
QUICK = CASES[:1]
"""What dies amid answers is `test_faults`."""


@pytest.fixture(scope="module")
def engine_of(serve, model):
    """`engine_of(steps) -> (engine, undisturbed tokens of each of CHATS)`"""

    @functools.cache
    def start(steps):
        engine = serve(str(model), *ENGINES[steps], "--max-restarts", "20")
        with ThreadPoolExecutor(4) as pool:
            return engine, [Reader(pool, engine, content, "whole").result() for content in CHATS]

    return start


@pytest.mark.parametrize(
    ("steps", "role", "moment"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.thorough) for case in CASES],
)
def test_a_death_is_a_pause_for_those_who_sent_pictures(engine_of, steps, role, moment):
    engine, whole = engine_of(steps)
    with ThreadPoolExecutor(4) as pool:
        readers = caught(engine, pool, moment, f"{role} {moment.__name__}")
        os.kill(engine.pids(role)[0], signal.SIGKILL)
        assert [reader.result() for reader in readers] == whole
    eventually(engine.idle)


def test_a_frontends_death_ends_its_own_streams_and_removes_its_pictures(serve, model, tmp_path):
    engine = serve(str(model), "--run-dir", str(tmp_path / "run"))
    media = tmp_path / "run/media"
    with ThreadPoolExecutor(4) as pool:
        whole = Reader(pool, engine, CHATS[1], "whole").result()
        (folder,) = media.iterdir()
        first, *others = caught(engine, pool, first_amid_its_answer, "killed")
        os.kill(engine.pids("frontend")[0], signal.SIGKILL)
        with pytest.raises(RequestError):
            first.result()
        for reader in others:  # they began sooner, and on a busy machine may have ended
            with contextlib.suppress(RequestError):
                assert len(reader.result()) == LONG

        def answers_again():
            with contextlib.suppress(RequestError):
                return Reader(pool, engine, CHATS[1], "again").result() == whole
            return False

        eventually(answers_again)
    assert not folder.exists()
    assert len(list(media.iterdir())) == 1
    eventually(engine.idle)
    engine.stop()


@pytest.mark.parametrize("seconds", [600, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_drain_waits_for_a_picture_that_is_decoded(serve, model, seconds):
    """The process that decodes it stands still until the drain has begun, or for longer than a drain may take."""
    engine = serve(str(model), "--drain-timeout", str(seconds), "--media-processes", "1")
    chats = [Chat([ChatMessage("user", [ImagePart(data=png(picture(96, 64, n)))])]) for n in range(2)]
    first, second = (GenerateRequest(input=chat, temperature=0, max_tokens=8, ignore_eos=True) for chat in chats)
    engine.client.generate(first)
    (decoder,) = (pid for pid, command in descendants(engine.process.pid) if "decode_child" in command)
    os.kill(decoder, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.client.generate, second)
        eventually(lambda: preparing_bytes(engine) > 0)
        assert engine.load().num_running == 0
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_for_line("draining")
        if seconds > 1:
            os.kill(decoder, signal.SIGCONT)
            assert asked.result(GUARD).outputs[0].finished.usage.completion_tokens == 8
        else:
            with pytest.raises(RequestError) as refused:
                asked.result(GUARD)
            assert refused.value.reason == "DRAINING"
    assert engine.process.wait(GUARD) == 0


def preparing_bytes(engine):
    page = urllib.request.urlopen(f"http://{engine.http}/metrics", timeout=GUARD).read().decode()
    return float(re.search(r"^quire_preparing_bytes(?:{.*})? (\S+)$", page, re.MULTILINE)[1])
