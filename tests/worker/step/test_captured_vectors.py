"""Vectors by the path of a GPU: encoders and decoders, captured, in the interpreter."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from recording import BLOCK, gpu_runner

pytestmark = pytest.mark.integration
LENGTHS = (5, 19, 1)
"""Of the prompts that are embedded."""


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_captured_chunks_of_a_decoder_give_the_vectors_of_whole_prompts(as_on_a_gpu, pooling, drive, tiny_checkpoint):
    def runner(captured):
        return drive(gpu_runner(tiny_checkpoint("Qwen3ForCausalLM", head_dim=32), captured, pooling=pooling), BLOCK)

    chunked = vectors(runner(True), [[(2, 1), (0, 5), (1, 11)], [(1, 6)], [(1, 2)]])
    whole = vectors(runner(False), [[(0, 5), (2, 1)], [(1, 19)]])
    np.testing.assert_allclose(chunked, whole, atol=5e-5)
