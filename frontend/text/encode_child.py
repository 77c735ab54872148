"""`python -m quire.frontend.text.encode_child`, in a sandbox: encodes and decodes long texts until it is told no more,
or killed.
"""

import ctypes
import os
from collections.abc import Callable

from quire.frontend.sandbox.child import serve
from quire.frontend.text.encode_jobs import answer
from quire.frontend.text.encode_threads import NICENESS
from quire.frontend.text.tokenizer import TextTokenizer


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """`setup` is the tokenizer's directory. A function from a job's payload to its answer."""
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
