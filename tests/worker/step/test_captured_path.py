"""The path of a GPU on this processor: Triton forms in the interpreter, padded buckets, a device that records.

Recorded steps run again on what their buffers hold then, with the host's numbers of the recording: exactly what a
captured graph does. What it cannot show is the hardware; that is for `make gpu-check`.
"""

import functools
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from quire.kernels import catalog
from quire.kernels.attention.tile_schedule import tile_shape
from quire.kernels.linear.pack import pack
from quire.proto.messages.params import SamplingParams, Structured
from quire.worker.build_context import BuildContext
from quire.worker.device.device import Device
from quire.worker.device.parallel import SingleGroup
from quire.worker.memory.kv_cache import KVCache, kv_layout
from quire.worker.models.build import load_model
from quire.worker.models.registry import read_spec
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.sampling.grammar_masks import GrammarMatchers
from quire.worker.sampling.pooler import Pooler
from quire.worker.step.graphs import Graphs, decode_buckets, mixed_buckets
from quire.worker.step.inputs import Bucket, Inputs
from quire.worker.step.runner import Runner
from quire.worker.tables.sampling_table import SamplingTable
from quire.worker.tables.slot_table import SlotTable
from quire.worker.tables.upload import Upload

pytestmark = pytest.mark.integration

BLOCK, ROWS, TOKENS = 8, 4, 64
LENGTHS = (5, 19, 1)
"""Of the prompts that are embedded."""


class Recording:
    """A graph: what it recorded, run again."""

    def __init__(self, run):
        self.replay = run

    def pool(self):
        return (0, 0)

    def reset(self):
        del self.replay


class RecordingDevice(Device):
    """This processor behind an upload of its own and with graphs."""

    def upload_buffers(self, num_bytes, depth):
        hosts = [torch.full((num_bytes,), 0xAB, dtype=torch.uint8) for _ in range(depth)]
        return hosts, torch.zeros(num_bytes, dtype=torch.uint8)

    def capture(self, run, pool):
        return Recording(run)


class LateMark:
    """What comes back from the device is there once this was waited for, and no sooner."""

    def __init__(self, under_way):
        self._under_way = under_way
        self._passed = False

    def passed(self):
        return self._passed

    @torch.inference_mode()
    def wait(self, before=None):
        for host, value in self._under_way:
            host.copy_(value)
        self._passed = True
        return 0.0


class LateDevice(RecordingDevice):
    """It works beside the host, and behind it."""

    works_beside = True

    def __init__(self, *args):
        super().__init__(*args)
        self._under_way = []

    def upload(self, array):
        return torch.from_numpy(array.copy())

    def fetch(self, tensors):
        hosts = [torch.full_like(tensor, 9) for tensor in tensors]
        self._under_way += zip(hosts, [tensor.clone() for tensor in tensors], strict=True)
        return hosts

    def mark(self, start, host_seconds):
        under_way, self._under_way = self._under_way, []
        return LateMark(under_way)


@pytest.fixture
def as_on_a_gpu(triton_interpreter, monkeypatch):
    """Every operation runs its form for GPUs."""
    for operation in catalog.OPERATIONS:
        if operation.form("cuda") != operation.form("none"):
            form = functools.partial(type(operation)._implementation, operation, "cuda")
            monkeypatch.setattr(operation, "implementation", lambda _, form=form: form())
    monkeypatch.setattr(pack, "implementation", lambda _: pack.reference)
    monkeypatch.setattr("quire.worker.step.inputs.tile_shape", lambda _, groups: tile_shape("cuda", groups))


def gpu_runner(folder, captured, kv_dtype=None, pooling=None, kind=RecordingDevice):
    """A runner of the checkpoint as `start` would build it on CUDA; with `pooling` it makes vectors."""
    device, spec = kind("cpu", 0), read_spec(folder, "auto" if pooling is None else "embed")
    spec = replace(spec, pooling=pooling)
    context = BuildContext(SingleGroup(), device.torch, torch.float32, everywhere(DenseScheme()))
    decoder = load_model(folder, spec, context).model
    cache = KVCache(kv_layout(spec.kv_layers(1), BLOCK, kv_dtype or torch.float32), 40, device.torch)
    for layer in cache.layers:
        if kv_dtype is None:
            layer.keys.fill_(torch.nan)
            layer.values.fill_(torch.nan)
    table = SamplingTable(ROWS, spec.vocab_size, spec.eos_token_ids, device)
    slots = SlotTable(ROWS, 100, 40, BLOCK, table, device.torch, spec.vocab_size)
    upload = Upload(device, ROWS)
    inputs = Inputs(slots, upload.rows, TOKENS, spec.kv_layers(1))
    graphs = (
        Graphs(device, [Bucket(ROWS, ROWS)], [Bucket(ROWS, ROWS, True), Bucket(20, ROWS, True)])
        if captured
        else Graphs(device)
    )
    pooler = None if pooling is None else Pooler(pooling, ROWS, spec.hidden_size, device.torch)
    matchers = GrammarMatchers(folder, spec.vocab_size, spec.eos_token_ids, ROWS, device)
    runner = Runner(
        decoder, cache, slots, inputs, upload, graphs, device, TOKENS, reports=True, pooler=pooler, matchers=matchers
    )
    runner.capture(spec.hidden_size, torch.float32)
    return runner


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


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "eager"])
def test_triton_forms_and_padded_buckets_draw_what_transformers_draws(
    as_on_a_gpu, captured, drive, tiny_checkpoint, reference
):
    driver = drive(gpu_runner(tiny_checkpoint(), captured), BLOCK)
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


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "eager"])
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


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    fields = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = transformers.BertConfig(**fields, num_attention_heads=4, initializer_range=0.15)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    return folder


def vectors(driver, steps):
    """Of three prompts, run in these steps."""
    found = {}
    for slot, length in enumerate(LENGTHS):
        driver.scribe.admit(slot, np.random.default_rng(slot).integers(1, 320, length).tolist())
    for rows in steps:
        raw, scribe = driver.run(rows).embeddings, driver.scribe
        ended = [slot for slot, _ in sorted(rows, key=lambda row: row[1] > 1) if scribe.known[slot] > LENGTHS[slot]]
        found |= {slot: np.frombuffer(vector, np.float32) for slot, vector in zip(ended, raw, strict=True)}
    return np.stack([found[slot] for slot in range(3)])


def test_an_encoders_forms_for_gpus_give_the_vectors_of_transformers(as_on_a_gpu, drive, encoder_folder):
    ours = vectors(drive(gpu_runner(encoder_folder, False, pooling="mean"), BLOCK), [[(0, 5), (2, 1)], [(1, 19)]])
    model = transformers.AutoModel.from_pretrained(encoder_folder, dtype=torch.float32).eval()
    for slot, length in enumerate(LENGTHS):
        ids = torch.tensor([np.random.default_rng(slot).integers(1, 320, length).tolist()])
        with torch.inference_mode():
            theirs = model(ids).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(ours[slot], theirs.numpy(), atol=5e-5)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_captured_chunks_of_a_decoder_give_the_vectors_of_whole_prompts(as_on_a_gpu, pooling, drive, tiny_checkpoint):
    def runner(captured):
        return drive(gpu_runner(tiny_checkpoint("Qwen3ForCausalLM", head_dim=32), captured, pooling=pooling), BLOCK)

    chunked = vectors(runner(True), [[(2, 1), (0, 5), (1, 11)], [(1, 6)], [(1, 2)]])
    whole = vectors(runner(False), [[(0, 5), (2, 1)], [(1, 19)]])
    np.testing.assert_allclose(chunked, whole, atol=5e-5)


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
