"""The path of a GPU on this processor: Triton forms in the interpreter, padded buckets, a device that records.

Recorded steps run again on what their buffers hold then, with the host's numbers of the recording: exactly what a
captured graph does. What it cannot show is the hardware; that is for `make gpu-check`.
"""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from quire.proto.messages.params import SamplingParams, Structured
from quire.worker.batch import Embedded
from quire.worker.build_runner import captured_steps
from quire.worker.config import WorkerConfig
from quire.worker.media.media_inputs import NO_MEDIA, StepMedia
from quire.worker.sampling.grammar_masks import GrammarMatchers
from quire.worker.step.graphs import LARGEST_OF_EXPERTS, Graphs, decode_buckets, mixed_buckets
from quire.worker.step.inputs import Bucket
from quire.worker.tables.upload import Upload

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from recording import BLOCK, ROWS, LateDevice, RecordingDevice, gpu_runner

pytestmark = pytest.mark.integration


def expected(reference, prompt, count):
    out = reference.generate(
        torch.tensor([prompt]),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


CAPTURED_OR_EAGER = pytest.mark.parametrize(
    "captured", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["captured", "eager"]
)
THREE_AXES = (0, 1, 2, 0, 1, 2, 0, 0)


@CAPTURED_OR_EAGER
@pytest.mark.parametrize(
    "pair_axes", [(), pytest.param(THREE_AXES, marks=pytest.mark.thorough)], ids=["one axis", "three axes"]
)
def test_triton_forms_and_padded_buckets_draw_what_transformers_draws(
    as_on_a_gpu, captured, pair_axes, drive, tiny_checkpoint, reference
):
    """Three axes are those of text in a model that sees images: on text they are alike."""
    driver = drive(gpu_runner(tiny_checkpoint(), captured, pair_axes=pair_axes), BLOCK)
    prompts = [np.random.default_rng(n).integers(1, 320, length).tolist() for n, length in enumerate((5, 19, 1))]
    drawn = [[], [], []]
    for slot, prompt in enumerate(prompts):
        driver.scribe.admit(slot, prompt)
    # mixed steps, the last as small as a bucket for decodes is, then decodes alone: three buckets, all padded
    steps = ([(2, 1), (0, 5), (1, 11)], [(0, 1), (2, 1), (1, 6)], [(0, 1), (1, 2)], *[[(0, 1), (1, 1), (2, 1)]] * 3)
    for rows in steps:
        tokens = iter(driver.draw(rows))
        for slot, count in sorted(rows, key=lambda row: row[1] > 1):
            if not (slot == 1 and count in (6, 11)):
                drawn[slot].append(next(tokens))
    for prompt, tokens in zip(prompts, drawn, strict=True):
        assert tokens == expected(reference, prompt, len(tokens))


def test_a_sampled_step_draws_the_tokens_of_the_references(as_on_a_gpu, driver, drive, tiny_checkpoint):
    """The same request on the processor's own forms (`driver`) and on those for GPUs."""
    params = SamplingParams(
        temperature=0.9,
        top_k=40,
        top_p=0.9,
        min_p=0.01,
        seed=5,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        allowed_token_ids=tuple(range(3, 300)),
        logprobs=2,
    )
    gpu = drive(gpu_runner(tiny_checkpoint(), captured=True), BLOCK)
    assert gpu.generate(0, [5, 6, 7, 8], 6, params) == driver.generate(0, [5, 6, 7, 8], 6, params)


GUIDED = SamplingParams(
    temperature=0.9, seed=5, max_tokens=100, repetition_penalty=1.2, structured=Structured("regex", "(ab|ba|c){30}")
)


def guided_steps(driver, ahead):
    """Tokens of a guided row between two that are not: one step after the other, or `ahead` of their results."""
    for slot, params in enumerate((SamplingParams(temperature=0.9, seed=1), GUIDED, SamplingParams(temperature=0.0))):
        driver.scribe.admit(slot, [5, 6, 7, 8], params)
    rows = [[(slot, 4) for slot in range(3)], *([[(slot, 1) for slot in range(3)]] * 5)]
    plans = [driver.scribe.plan(one)[0] for one in rows]
    if ahead:
        results = [driver.runner.collect(step) for step in [driver.runner.launch(plan) for plan in plans]]
    else:
        results = [driver.runner.collect(driver.runner.launch(plan)) for plan in plans]
    assert not any(result.stuck_rows or result.bad_rows for result in results)
    return [np.frombuffer(result.token_ids, dtype=np.int32).tolist() for result in results]


def test_a_step_with_embeddings_put_in_place_is_not_one_that_was_recorded_without(
    as_on_a_gpu, drive, tiny_checkpoint, reference, monkeypatch
):
    """A double of embeddings that are no token's; on other paths they are tested in test_embedded.py."""
    driver = drive(gpu_runner(tiny_checkpoint(), captured=True), BLOCK)
    prompt, replayed = [5, 6, 7, 8, 9], []
    with torch.inference_mode():
        vectors = driver.runner._model.embedding.embed(torch.arange(320))

    def prepare(plan, rows, upload):
        return StepMedia(Embedded(torch.tensor(prompt), vectors)) if rows.num_tokens == len(prompt) else NO_MEDIA

    driver.runner._media = SimpleNamespace(prepare=prepare, run=lambda plan, media: None)
    replay = Graphs.replay
    monkeypatch.setattr(Graphs, "replay", lambda graphs, bucket: replayed.append(bucket) or replay(graphs, bucket))
    assert driver.generate(0, [0] * len(prompt), 4) == expected(reference, prompt, 4)
    assert replayed == [Bucket(ROWS, ROWS)] * 3, "the others were"


@CAPTURED_OR_EAGER
def test_masks_of_grammars_hold_in_steps_that_run_ahead_of_their_results(
    as_on_a_gpu, captured, driver, drive, tiny_checkpoint
):
    """A mask needs the token before, which is on its way back while the layers run; what is read too early is 9."""
    wanted = guided_steps(driver, ahead=False)
    late = drive(gpu_runner(tiny_checkpoint(), captured, kind=LateDevice), BLOCK)
    assert guided_steps(late, ahead=True) == wanted
    text = Tokenizer.from_file(str(tiny_checkpoint() / "tokenizer.json")).decode([row[1] for row in wanted])
    assert len(text) >= 6
    assert set(text) <= set("abc")


def test_masks_are_begun_before_the_layers_and_uploaded_behind_them(as_on_a_gpu, drive, tiny_checkpoint, monkeypatch):
    made, threads = [], set()
    late = drive(gpu_runner(tiny_checkpoint(), True, kind=LateDevice), BLOCK)

    def noted(kind, name, what):
        original = getattr(kind, name)

        def call(*args):
            made.append(what)
            return original(*args)

        monkeypatch.setattr(kind, name, call)

    noted(GrammarMatchers, "masks", "begun")
    noted(Graphs, "replay", "layers")
    noted(GrammarMatchers, "upload", "uploaded")
    advance = GrammarMatchers._advance
    monkeypatch.setattr(
        GrammarMatchers, "_advance", lambda *args: threads.add(threading.current_thread().name) or advance(*args)
    )
    guided_steps(late, ahead=True)
    assert made == ["begun", "layers", "uploaded"] * 6
    assert threads == {"grammar masks"}


def test_a_cache_of_8_bit_floats_serves_a_whole_sequence(as_on_a_gpu, drive, tiny_checkpoint):
    driver = drive(gpu_runner(tiny_checkpoint(), True, torch.float8_e4m3fn), BLOCK)
    tokens = driver.generate(0, [5, 6, 7, 8, 9, 10, 11, 12, 13], 4)
    assert len(tokens) == 4
    assert all(0 <= token < 320 for token in tokens)


def test_buckets_hold_every_step_with_little_padding():
    decode = decode_buckets(256)
    assert decode[-1] == Bucket(256, 256)
    assert decode_buckets(5) == [Bucket(1, 1), Bucket(2, 2), Bucket(4, 4), Bucket(5, 5)]
    graphs = Graphs(RecordingDevice("cpu", 0), decode, mixed_buckets(2048, 256))
    assert Bucket(256, 256, True) in mixed_buckets(2048, 256), "as large as a decode bucket, and not the same"
    assert graphs.fitting(3, 3) is None, "nothing is captured yet"
    graphs.capture(lambda bucket: torch.zeros(bucket.num_tokens, 2), 2, torch.float32)
    for rows in range(1, 257):
        bucket = graphs.fitting(rows, rows)
        assert rows <= bucket.num_rows == bucket.num_tokens < rows + 8
    for tokens in range(17, 513):
        bucket = graphs.fitting(tokens, 16)
        assert tokens <= bucket.num_tokens <= 1.25 * tokens
        assert bucket.num_rows == 256
    assert graphs.fitting(513, 16) is None, "a long step is run as it is"


def test_longer_steps_of_a_model_of_experts_are_captured_with_less_padding():
    sizes = [bucket.num_tokens for bucket in mixed_buckets(4096, 8, LARGEST_OF_EXPERTS)]
    assert sizes[:-17] == [bucket.num_tokens for bucket in mixed_buckets(512, 8)][:-1]
    assert sizes[-17:] == [*range(512, 1024, 64), *range(1024, 2048, 128), 2048]
    assert [bucket.num_tokens for bucket in mixed_buckets(700, 8, LARGEST_OF_EXPERTS)][-3:] == [576, 640, 700]
    assert [bucket.num_tokens for bucket in mixed_buckets(20, 8)] == [16, 20]


@pytest.mark.parametrize(("routed", "largest"), [(False, 512), (True, 2048)])
def test_what_a_device_captures_depends_on_whether_the_model_has_experts(routed, largest, monkeypatch):
    device, captured = RecordingDevice("cpu", 0), []
    monkeypatch.setattr(RecordingDevice, "records_graphs", True)
    steps = captured_steps(WorkerConfig(model="", max_num_seqs=8, max_num_batched_tokens=4096), device, routed)

    def run(bucket):
        captured.append(bucket.num_tokens)
        return torch.zeros((bucket.num_tokens, 1))

    steps.capture(run, 1, torch.float32)
    assert max(captured) == largest


@pytest.mark.parametrize("most", [9, 16, 17, 511, 600, 1000, 2047, 2048])
def test_a_step_that_fills_its_budget_is_captured(most):
    """However odd that is: prompts are cut to fill it, so no step is more frequent."""
    sizes = [bucket.num_tokens for bucket in mixed_buckets(most, 8, LARGEST_OF_EXPERTS)]
    assert sizes == sorted({*sizes})
    assert sizes[-1] == most


def test_the_upload_ring_never_changes_what_was_sent_and_takes_more_than_it_holds():
    upload = Upload(RecordingDevice("cpu", 0), ROWS, capacity=64)
    for step in range(10):
        upload.begin()
        column = np.arange(3, dtype=np.int64) + step
        long = np.arange(100, dtype=np.int32) * step
        upload.put_rows((column[:2], column[:2], column[:2]), 4)
        small, large = upload.put(column), upload.put(long)
        upload.send()
        assert small.tolist() == column.tolist()
        assert large.tolist() == long.tolist()
        assert upload.rows[:, :4].tolist() == [[step, step + 1, 0, 0]] * 3
