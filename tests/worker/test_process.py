"""Real worker processes with the tiny model: from hello to a clean end."""

import signal

import numpy as np
import pytest
import torch

from quire.proto.messages.params import SamplingParams, Structured
from quire.proto.messages.plans import Stop, Welcomed

pytestmark = pytest.mark.integration

PROMPT = list(range(40, 61))


def reference_tokens(reference, count):
    out = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(PROMPT) :].tolist()


def check_facts(ready, size):
    facts = ready[0].facts
    assert (facts.vocab_size, facts.max_model_len, facts.eos_token_ids) == (320, 256, (0,))
    assert (facts.architecture, facts.device, facts.dtype) == ("LlamaForCausalLM", "cpu", "float32")
    assert facts.num_blocks == (4 << 20) // (2 * 2 * 8 * (2 // size) * 16 * 4)
    assert all(dict(one.memory) == {"weights": one.facts.weight_bytes, "kv_cache": one.facts.kv_bytes} for one in ready)
    assert [name for name, _ in ready[0].phases] == ["group", "weights", "memory", "first_steps", "graphs"]


def serve_a_sequence(workers, writer, reference):
    writer.admit(0, PROMPT)
    drawn = []
    for rows in ([(0, 10)], [(0, 11)], *([(0, 1)] for _ in range(6))):
        drawn += np.frombuffer(workers.step(writer.plan(rows)[1]).token_ids, dtype=np.int32).tolist()
    assert drawn == reference_tokens(reference, 7)


def test_one_rank_draws_the_models_tokens_ignores_interrupts_and_answers_all_plans_before_it_stops(
    group, scribe, reference
):
    workers, writer = group(), scribe(8)
    check_facts(workers.join(), 1)
    workers.processes[0].send_signal(signal.SIGINT)
    serve_a_sequence(workers, writer, reference)
    for _ in range(2):
        workers.send(writer.plan([(0, 1)])[1])
    codes = workers.stop()
    assert [workers.receive()[1].step for _ in range(2)] == [9, 10]
    assert codes == [0]


def test_two_ranks_agree_draw_the_models_tokens_and_end_cleanly_when_terminated(group, scribe, reference):
    workers = group(2)
    ready = workers.join()
    check_facts(ready, 2)
    assert ready[0].digest == ready[1].digest
    serve_a_sequence(workers, scribe(8), reference)
    for process in workers.processes:
        process.send_signal(signal.SIGTERM)
    assert workers.exit_codes() == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks_run_their_steps_as_a_tape_which_draws_the_same_tokens(group, scribe, tiny_checkpoint, dtype):
    shape = {"model": str(tiny_checkpoint(hidden_size=64, intermediate_size=128, head_dim=16)), "dtype": dtype}
    drawn = []
    for epoch, enforced in enumerate((False, True), 1):
        workers, writer = group(2, epoch, enforce_eager=enforced, **shape), scribe(8, epoch)
        workers.join()
        writer.admit(0, list(range(40, 61)))
        writer.admit(1, list(range(5, 11)))
        frames = [writer.plan([(0, 21), (1, 6)])[1], *(writer.plan([(0, 1), (1, 1)])[1] for _ in range(8))]
        drawn.append([workers.step(one).token_ids for one in frames])
        assert ("one tape of" in workers.log.read_text()) or enforced
        assert workers.stop() == [0, 0]
        workers.close()
    assert drawn[0] == drawn[1]
    assert workers.log.read_text().count("one tape of") == 2


@pytest.mark.parametrize("how", ["stop", "sigterm"])
def test_a_worker_that_still_compiles_grammars_leaves_without_a_word(how, group, scribe):
    """It ended by SIGSEGV or SIGABRT: the interpreter was taken apart beneath the compiling threads."""
    workers, writer = group(), scribe(8)
    workers.join()
    for slot in range(8):
        words = "|".join(f"{slot}{number:05}" for number in range(4000))
        writer.admit(slot, [1, 2], SamplingParams(max_tokens=9, structured=Structured("regex", f"({words}){{1,9}}")))
    workers.send(writer.plan([(0, 1)])[1])
    workers.receive()
    if how == "stop":
        workers.send(Stop("test"))
    else:
        workers.processes[0].send_signal(signal.SIGTERM)
    assert workers.exit_codes() == [0]
    assert not [line for line in workers.log.read_text().splitlines() if " INFO " not in line]


def test_a_model_that_cannot_be_loaded_is_reported_to_the_scheduler(group, tmp_path):
    workers = group(model=str(tmp_path))
    workers.hello()
    workers.send(Welcomed(1))
    assert "config.json" in workers.failure().reason
    assert workers.exit_codes() == [5], "what the user must change is not worth a restart"
