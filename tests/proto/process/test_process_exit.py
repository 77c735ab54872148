"""A process with threads in the middle of a library's code ends with its code, and says nothing of its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUSY = {
    "torch": """
import torch
torch.set_num_threads(1)
matrix = torch.randn(300, 300)
def work():
    while True:
        matrix.mm(matrix)
""",
    "grammars": f"""
from quire.proto.messages.params import Structured
from quire.proto.messages.structured import load_vocabulary, new_matcher
vocabulary = load_vocabulary(__import__("pathlib").Path({str(ROOT / "deploy" / "model")!r}), 4096, (0,))
def work():
    while True:
        new_matcher(vocabulary, Structured("regex", "(a|b|c){{1,40}}x[0-9]{{2,40}}"))
""",
}
MAIN = """
import sys, threading, time
from quire.proto.process.process_exit import exit_after
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
def main():
    time.sleep(0.2)
    print("said")
    print("logged", file=sys.stderr)
    return 3
exit_after(main)
"""


def run(code: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("library", BUSY)
def test_threads_in_the_middle_of_a_library_do_not_spoil_the_end(library):
    """With `sys.exit` instead, the first ended by SIGABRT and the second by SIGSEGV in 40 runs of 40."""
    assert run(BUSY[library] + MAIN) == (3, "said\n", "logged\n")


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("return 0", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("raise KeyError('x')", 1, "KeyError: 'x'\n"),
        ("sys.stdout.close(); return 5", 5, ""),
    ],
)
def test_the_code_is_what_main_returned_exited_with_or_failed_by(body, code, said):
    ended = run(
        f"import sys\nfrom quire.proto.process.process_exit import exit_after\ndef main(): {body}\nexit_after(main)"
    )
    assert ended[0] == code
    assert ended[2].endswith(said)
    assert bool(ended[2]) == bool(said)


def test_a_signal_ends_the_process_even_where_exceptions_are_lost():
    """A handler that raised SystemExit inside a finaliser was heard by nobody, and the next signal was ignored."""
    code = """
import os, signal, time
from quire.proto.process.process_exit import exit_now
signal.signal(signal.SIGTERM, lambda *_: exit_now(4))
class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
Finalised()
print("still here")
"""
    assert run(code) == (4, "", "")


def test_a_signal_ends_the_process_while_its_main_thread_is_inside_a_library():
    """A handler alone waits for the call to end, which may never be: here for a mutex that nobody gives back."""
    code = """
import ctypes, os, signal, threading, time
from quire.proto.process.process_exit import exit_on
exit_on(signal.SIGTERM, 4)
print("said")
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
mutex = ctypes.create_string_buffer(256)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
print("still here")
"""
    assert run(code) == (4, "said\n", "")


@pytest.mark.parametrize("role", ["frontend", "scheduler", "worker"])
def test_every_kind_of_process_ends_so(role):
    """The last thing each does; and nothing of theirs leaves by an exception out of a signal's handler."""
    tree = ast.parse((ROOT / role / "__main__.py").read_text())
    assert ast.unparse(tree.body[-1]) == "if __name__ == '__main__':\n    exit_after(main)"
    raised = {ast.unparse(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc}
    assert not any("SystemExit" in what for what in raised)
