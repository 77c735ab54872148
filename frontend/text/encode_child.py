"""The child process that encodes and decodes long texts: `python -m quire.frontend.text.encode_child`, in a sandbox."""

import ctypes
import os
from collections.abc import Callable

from quire.frontend.sandbox.child import serve
from quire.frontend.text.encode_jobs import answer
from quire.frontend.text.encode_threads import NICENESS
from quire.frontend.text.tokenizer import TextTokenizer


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """The function from a job's message to its answer; `setup` is the tokenizer's directory."""
    os.nice(NICENESS)
    tokenizer = TextTokenizer(setup.decode())
    trim = ctypes.CDLL(None).malloc_trim

    def work(payload: bytes) -> bytes:
        result = answer(payload, tokenizer)
        trim(0)  # a long text takes a hundred times its size meanwhile
        return result

    return work


if __name__ == "__main__":
    serve(prepare)
