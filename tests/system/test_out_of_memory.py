"""Memory that ends is one sentence with sizes and the knob, at the terminal of `quire serve`, wherever it ends."""

import os
import re
from pathlib import Path

import pytest
from parts.clock import GUARD

from quire.proto.api import GenerateRequest, RequestError

HERE = Path(__file__).parent
SIZES = r"asked for 2\.50 GiB more and ran out of memory: [\d.]+ [GM]iB of [\d.]+ GiB are free; "


@pytest.fixture
def memory_ends(tmp_path, monkeypatch):
    """`memory_ends("step", "cache")`: for every engine from here on, where it ends in each epoch."""
    (tmp_path / "count").write_text("oom_kill 4\n")
    given = [str(HERE / "out_of_memory"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(given))
    monkeypatch.setenv("TEST_OOM_COUNT", str(tmp_path / "count"))
    return lambda *places: monkeypatch.setenv("TEST_MEMORY_ENDS", ",".join(places))


def test_weights_that_find_no_memory_refuse_the_start(memory_ends, quire, tiny_checkpoint):
    memory_ends("weights")
    made = quire("serve", str(tiny_checkpoint()), "--grpc-port=0", "--http-port=0", "--num-threads=1")
    assert made.returncode == 2, made.stdout + made.stderr
    assert "Traceback" not in made.stdout + made.stderr
    last = made.stdout.splitlines()[-1]
    assert re.search(rf"stopped, exit code 2: .*refused: loading the weights {SIZES}choose a smaller model, ", last)
    assert last.endswith("dtype bfloat16 or quantization int8, or end what else uses it")


def test_each_place_of_a_running_engine_says_what_to_change(memory_ends, serve, tiny_checkpoint):
    """A step fails; of the groups after it one finds no memory for its cache, the kernel ends one, the last records."""
    memory_ends("step", "cache", "killed", "graphs")
    engine = serve(str(tiny_checkpoint()), "--max-restarts=3", "--kv-cache-memory-bytes=1MiB")
    with pytest.raises(RequestError, match="more than 3 deaths"):
        engine.client.generate(GenerateRequest(input=[5, 6, 7], temperature=0, max_tokens=50, ignore_eos=True))
    assert engine.process.wait(GUARD) == 1
    engine.wait_for_line("stopped")
    assert "Traceback" not in engine.log
    lower = "lower --max-num-batched-tokens, --max-num-seqs or --kv-cache-memory-bytes, or "
    tape = f"recording a tape {SIZES}{lower}do without it: --enforce-eager, or end"
    for pattern in (
        rf"\[worker 0\] .* ERROR worker rank=0 epoch=1 failed at step 4: a step {SIZES}{lower}end what else uses it$",
        rf"epoch=2 failed at step 0: a KV cache of [\d.]+ \w+ {SIZES}lower --kv-cache-memory-bytes, or end",
        r"worker 0 was killed by SIGKILL \(by the kernel for want of memory, most likely: .* are free now; lower --kv-",
        rf"epoch=4 failed at step 0: {tape}",
        rf"stopped, exit code 1: .* {tape}",
    ):
        assert re.search(pattern, engine.log, re.MULTILINE), f"{pattern}\n{engine.log}"
