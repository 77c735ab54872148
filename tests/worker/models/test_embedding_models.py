"""Vectors of encoders and decoders against transformers' hidden states, pooled by hand; and what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_classifiers import SHAPE, write_random

from quire.worker.batch import Embedded
from quire.worker.config import ENCODER_TYPES
from quire.worker.media.media_inputs import StepMedia
from quire.worker.specs.architectures import ARCHITECTURES
from quire.worker.specs.families import bert
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

DECODER = {**SHAPE, "num_key_value_heads": 2, "head_dim": 32, "bos_token_id": 0, "eos_token_id": 0}
MODELS = {
    "BertModel": (transformers.BertConfig, {**SHAPE, "type_vocab_size": 2}),
    "BertForMaskedLM": (transformers.BertConfig, {**SHAPE, "hidden_act": "gelu_new"}),
    "XLMRobertaModel": (transformers.XLMRobertaConfig, {**SHAPE, "type_vocab_size": 1, "pad_token_id": 1}),
    "RobertaModel": (transformers.RobertaConfig, {**SHAPE, "type_vocab_size": 1, "pad_token_id": 1}),
    "Qwen3Model": (transformers.Qwen3Config, DECODER),
    "LlamaModel": (transformers.LlamaConfig, DECODER),
    "Qwen3ForCausalLM": (transformers.Qwen3Config, DECODER),
    "Gemma3TextModel": (transformers.Gemma3TextConfig, {**DECODER, "sliding_window": 20}),
    "Phi3Model": (transformers.Phi3Config, {**DECODER, "pad_token_id": 1}),
    "MixtralModel": (transformers.MixtralConfig, {**DECODER, "num_local_experts": 4}),
}
STAGES = ["Transformer", "Pooling", "Normalize"]


def describe(folder, pooling=None, stages=STAGES, **flags):
    """The files of sentence-transformers."""
    if pooling is not None:
        flags[f"pooling_mode_{pooling}"] = True
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(stages)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    config = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, **flags}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(architecture, pooling=None) -> folder` with random weights."""

    def make(architecture, pooling=None):
        kind, fields = MODELS[architecture]
        write_random(tmp_path, architecture, kind(**fields), 3)
        if pooling is not None:
            describe(tmp_path, pooling)
        return tmp_path

    return make


def vectors(result):
    assert set(np.frombuffer(result.token_ids, np.int32).tolist()) <= {0}
    return [np.frombuffer(vector, np.float32) for vector in result.embeddings]


def expected(folder, prompts, pooling):
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        with torch.inference_mode():
            states = model(torch.tensor([prompt])).last_hidden_state[0]
        found.append({"cls": states[0], "lasttoken": states[-1], "mean_tokens": states.mean(0)}[pooling].numpy())
    return found


def some_prompts(lengths=(1, 5, 40, 128)):
    generator = torch.Generator().manual_seed(7)
    # id 1 is RoBERTa's padding, which transformers would not count
    return [torch.randint(2, 320, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize(
    ("architecture", "pooling"),
    [
        ("BertModel", "mean_tokens"),
        ("BertForMaskedLM", None),
        ("XLMRobertaModel", None),
        ("RobertaModel", "lasttoken"),
        ("Qwen3Model", None),
        ("LlamaModel", "mean_tokens"),
        ("Qwen3ForCausalLM", "lasttoken"),
        ("Gemma3TextModel", "mean_tokens"),
        ("Phi3Model", None),
        ("MixtralModel", "lasttoken"),
    ],
)
def test_a_batch_of_prompts_gives_the_vectors_of_transformers(architecture, pooling, checkpoint, started):
    folder = checkpoint(architecture, pooling)
    driver, prompts = started(folder), some_prompts()
    is_encoder = "Bert" in architecture or "Roberta" in architecture
    assert (driver.facts.task, driver.facts.embedding_size) == ("embed", 64)
    assert driver.facts.whole_prompts == is_encoder
    assert driver.facts.shares_prefixes == (not is_encoder and pooling != "mean_tokens")
    for slot, prompt in enumerate(prompts):
        driver.scribe.admit(slot, prompt)
    result = driver.run([(slot, len(prompt)) for slot, prompt in enumerate(prompts)])
    wanted = expected(folder, prompts, pooling or ("cls" if is_encoder else "lasttoken"))
    for ours, theirs in zip(vectors(result), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_a_decoder_whose_tokens_see_each_other_is_refused(checkpoint):
    folder = checkpoint("Gemma3TextModel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "use_bidirectional_attention": True}))
    with pytest.raises(ModelError, match="use_bidirectional_attention: every token sees those before it"):
        read_spec(folder)


def test_a_longest_prompt_is_the_positions_that_are_left(checkpoint, started):
    assert started(checkpoint("XLMRobertaModel")).facts.max_model_len == 128
    assert read_spec(checkpoint("BertModel")).max_model_len == 130


@pytest.mark.parametrize("pooling", ["mean_tokens", "lasttoken"])
def test_a_decoders_prompt_may_come_in_chunks_beside_others(pooling, checkpoint, started):
    folder = checkpoint("Qwen3Model", pooling)
    driver, prompts = started(folder), some_prompts((40, 33))
    for _ in range(2):  # a slot's next prompt does not begin with what the last one left
        driver.scribe.admit(3, prompts[0])
        assert vectors(driver.run([(3, 17)])) == []
        driver.scribe.admit(1, prompts[1])
        (whole,) = vectors(driver.run([(1, 33), (3, 6)]))
        (chunked,) = vectors(driver.run([(3, 17)]))
        for ours, theirs in zip((chunked, whole), expected(folder, prompts, pooling), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-5)
        driver.scribe.release(3)
        driver.scribe.release(1)


def test_a_vector_that_is_no_number_is_a_bad_row(checkpoint, started):
    folder = checkpoint("BertModel")
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][17] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    driver = started(folder)
    driver.scribe.admit(0, [5, 6])
    driver.scribe.admit(1, [5, 17])
    result = driver.run([(0, 2), (1, 2)])
    assert result.bad_rows == (1,)
    assert np.isfinite(vectors(result)[0]).all()


def test_an_encoder_takes_embeddings_in_place_of_looked_up_ones(checkpoint, started):
    """A double of embeddings that are no token's; a decoder's are in tests/worker/step/test_embedded.py."""
    folder, (prompt,) = checkpoint("BertModel"), some_prompts((9,))
    driver = started(folder)
    with torch.inference_mode():
        table = driver.runner._model.embedding.embed(torch.arange(320))
    media = StepMedia(Embedded(torch.tensor(prompt), table))
    driver.runner._media = SimpleNamespace(prepare=lambda plan, rows, upload: media, run=lambda plan, media: None)
    driver.scribe.admit(0, [0] * 9)
    np.testing.assert_allclose(vectors(driver.run([(0, 9)]))[0], expected(folder, [prompt], "cls")[0], atol=2e-5)


def test_two_ranks_give_the_vectors_of_one(checkpoint, started, group, scribe, settings):
    folder, prompts = checkpoint("XLMRobertaModel", "mean_tokens"), some_prompts((5, 40))
    ranks = group(2, model=str(folder))
    facts = ranks.join()[0].facts
    assert (facts.task, facts.whole_prompts) == ("embed", True)
    writer = scribe(settings["block_size"])
    for slot, prompt in enumerate(prompts):
        writer.admit(slot, prompt)
    result = ranks.step(writer.plan([(0, 5), (1, 40)])[1])
    for ours, theirs in zip(vectors(result), expected(folder, prompts, "mean_tokens"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert ranks.stop() == [0, 0]


def test_the_oldest_names_of_norms_and_heads_for_training_are_understood(checkpoint, started):
    folder = checkpoint("BertForMaskedLM")
    tensors = load_file(folder / "model.safetensors")
    assert any(name.startswith("cls.") for name in tensors)
    wanted = expected(folder, [[5, 6, 7]], "cls")[0]
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    driver = started(folder)
    driver.scribe.admit(0, [5, 6, 7])
    np.testing.assert_allclose(vectors(driver.run([(0, 3)]))[0], wanted, atol=2e-5)


def test_the_command_line_knows_the_type_of_every_encoder():
    encoders = [name for name, architecture in ARCHITECTURES.items() if architecture.names is bert.NAMES]
    assert {getattr(transformers, name).config_class.model_type for name in encoders} == set(ENCODER_TYPES)


def test_the_task_follows_from_the_checkpoint_and_can_be_named(checkpoint):
    folder = checkpoint("Qwen3ForCausalLM")
    assert read_spec(folder).pooling is None
    assert read_spec(folder, "embed").pooling == ("last",)
    describe(folder, "mean_tokens")
    assert read_spec(folder).pooling == ("mean",)
    assert read_spec(folder, "generate").pooling is None


@pytest.mark.parametrize("architecture", ["BertModel", "Qwen3Model"])
def test_a_model_without_a_head_cannot_generate(architecture, checkpoint):
    with pytest.raises(ModelError, match=rf"^task: {architecture} has no head .* use task embed"):
        read_spec(checkpoint(architecture), "generate")


@pytest.mark.parametrize(
    ("stages", "flags", "text"),
    [
        ([*STAGES, "CNN"], {"pooling_mode_cls_token": True}, r"modules.json: stage 'CNN' is not supported"),
        (STAGES, {"pooling_mode_median": True}, r"pooling_mode: .*pooling_mode_median is not supported"),
        (STAGES, {"pooling_mode": ["x" * 9999] * 9999}, r"pooling_mode: .{,1000} is not supported"),
    ],
)
def test_stages_and_poolings_that_cannot_be_served_are_refused(stages, flags, text, checkpoint):
    folder = checkpoint("BertModel")
    describe(folder, None, stages, **flags)
    with pytest.raises(ModelError, match=text):
        read_spec(folder)


def test_a_decoder_has_no_first_token_to_pool(checkpoint):
    folder = checkpoint("Qwen3Model", "cls_token")
    with pytest.raises(ModelError, match=r"^pooling_mode: the first token of a decoder"):
        read_spec(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("is_decoder", True),
        ("position_embedding_type", "relative_key"),
        ("hidden_act", "relu"),
        ("num_attention_heads", 5),
    ],
)
def test_encoders_that_differ_in_the_mathematics_are_refused_by_field(field, value, checkpoint):
    folder = checkpoint("BertModel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(ModelError, match=rf": {field}: "):
        read_spec(folder)
