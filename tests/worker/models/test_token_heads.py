"""Heads of rows of the output head against transformers' logits: tied and not, by two tokens or one, and refusals."""

import json
import re

import numpy as np
import pytest
import torch
import transformers
from tiny_classifiers import SHAPE, wordpiece

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import ALONE
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

DECODER = {"num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
MODELS = {
    "Qwen2ForCausalLM": (transformers.Qwen2Config, DECODER),
    "Qwen3ForCausalLM": (transformers.Qwen3Config, {**DECODER, "head_dim": 16}),
    "GemmaForCausalLM": (transformers.GemmaConfig, {**DECODER, "head_dim": 16}),
    # a cap and a scale of logits
    "Gemma2ForCausalLM": (transformers.Gemma2Config, {**DECODER, "head_dim": 16, "final_logit_softcapping": 2.0}),
    "CohereForCausalLM": (transformers.CohereConfig, {**DECODER, "logit_scale": 0.3}),
}
PROMPTS = [[2, 7, 9, 3, 30, 31, 3], [2, 7, 3], [2, 5, 3, *range(40, 80), 3]]
RERANKER = {"classifier_from_token": ["cat", "mat"], "method": "from_2_way_softmax"}
ORIGINAL = {"classifier_from_token": ["cat", "mat"], "is_original_qwen3_reranker": True}


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(architecture, tied, **fields) -> folder` with random weights; `fields` of its config.json."""

    def make(architecture, tied, **fields):
        kind, own = MODELS[architecture]
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = getattr(transformers, architecture)(kind(**SHAPE, **own, tie_word_embeddings=tied))
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1 and "norm" in name:
                    torch.nn.init.normal_(parameter, mean=float("gemma" not in architecture.lower()), std=0.2)
        model.save_pretrained(tmp_path)
        wordpiece()[0].save(str(tmp_path / "tokenizer.json"))
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **fields}))
        return tmp_path

    return make


def numbers(result):
    return [np.frombuffer(vector, np.float32) for vector in result.embeddings]


def logits(folder, architecture, *tokens):
    """transformers' logits of these tokens behind each of PROMPTS."""
    # the config names another class for the same files
    kind = getattr(transformers, architecture)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = [wordpiece()[0].token_to_id(token) for token in tokens]
    with torch.inference_mode():
        return np.stack([model(torch.tensor([prompt])).logits[0, -1, ids].numpy() for prompt in PROMPTS])


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own head"])
@pytest.mark.parametrize("architecture", MODELS)
def test_the_number_is_what_one_logit_has_over_the_other(architecture, tied, checkpoint, started):
    folder = checkpoint(architecture, tied, **RERANKER)
    driver = started(folder)
    assert (driver.facts.task, driver.facts.vector_size) == ("score", 1)
    assert (driver.facts.head.labels, driver.facts.head.activation) == (("mat",), "sigmoid")
    assert driver.facts.head.is_of_tokens
    for slot, prompt in enumerate(PROMPTS):
        driver.scribe.admit(slot, prompt)
    assert numbers(driver.run([(2, 29)])) == []
    result = driver.run([(slot, len(prompt) - 29 * (slot == 2)) for slot, prompt in enumerate(PROMPTS)])
    wanted = logits(folder, architecture, "cat", "mat")
    np.testing.assert_allclose(np.concatenate(numbers(result)), wanted[:, 1] - wanted[:, 0], atol=2e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_other_names_for_the_class_and_the_way_change_nothing(tied, checkpoint, started):
    folder = checkpoint("Qwen3ForCausalLM", tied, **ORIGINAL, architectures=["Qwen3ForSequenceClassification"])
    driver = started(folder)
    driver.scribe.admit(0, PROMPTS[1])
    wanted = logits(folder, "Qwen3ForCausalLM", "cat", "mat")[1]
    (ours,) = numbers(driver.run([(0, len(PROMPTS[1]))]))
    np.testing.assert_allclose(ours, wanted[1:] - wanted[:1], atol=2e-5)


@pytest.mark.parametrize("tokens", [["mat"], ["cat", "mat", "dog"]])
def test_logits_alone_are_numbers_of_labels(tokens, checkpoint, started):
    folder = checkpoint("Qwen2ForCausalLM", True, classifier_from_token=tokens, method="no_post_processing")
    driver = started(folder)
    assert driver.facts.task == ("score" if len(tokens) == 1 else "classify")
    assert driver.facts.head.labels == tuple(tokens)
    driver.scribe.admit(0, PROMPTS[0])
    (ours,) = numbers(driver.run([(0, len(PROMPTS[0]))]))
    np.testing.assert_allclose(ours, logits(folder, "Qwen2ForCausalLM", *tokens)[0], atol=2e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tied", [True, False])
def test_two_ranks_give_the_numbers_of_one(tied, checkpoint, group, scribe, settings):
    folder = checkpoint("Qwen3ForCausalLM", tied, **RERANKER)
    ranks = group(2, model=str(folder))
    assert ranks.join()[0].facts.task == "score"
    writer = scribe(settings["block_size"])
    for slot, prompt in enumerate(PROMPTS):
        writer.admit(slot, prompt)
    result = ranks.step(writer.plan([(slot, len(prompt)) for slot, prompt in enumerate(PROMPTS)])[1])
    wanted = logits(folder, "Qwen3ForCausalLM", "cat", "mat")
    np.testing.assert_allclose(np.concatenate(numbers(result)), wanted[:, 1] - wanted[:, 0], atol=2e-5)
    assert ranks.stop() == [0, 0]


@pytest.mark.parametrize("tied", [True, False])
def test_only_those_rows_of_the_head_are_kept(tied, checkpoint, started):
    folder = checkpoint("Qwen3ForCausalLM", tied, **RERANKER)
    spec = read_spec(folder)
    context = BuildContext(ALONE, torch.device("meta"), torch.float32, everywhere(DenseScheme()))
    built = sum(parameter.numel() for parameter in build_model(spec, context).parameters())
    assert sizes.count(spec, 1).num_parameters == built
    hidden = SHAPE["hidden_size"]
    assert built == sizes.count(read_spec(folder, "embed"), 1).num_parameters + 2 * hidden


@pytest.mark.parametrize("tied", [True, False])
def test_layers_of_codes_leave_the_rows_as_they_are(tied, checkpoint, started):
    folder = checkpoint("Qwen3ForCausalLM", tied, **RERANKER)
    driver = started(folder, quantization="int8")
    driver.scribe.admit(0, PROMPTS[0])
    wanted = logits(folder, "Qwen3ForCausalLM", "cat", "mat")[0]
    (ours,) = numbers(driver.run([(0, len(PROMPTS[0]))]))
    assert abs(ours[0] - (wanted[1] - wanted[0])) < 0.1


def test_the_same_files_generate_and_embed(checkpoint):
    folder = checkpoint("Qwen3ForCausalLM", True, **RERANKER)
    assert read_spec(folder, "generate").pooling is None
    assert read_spec(folder, "embed").head is None
    assert read_spec(folder, "reward").head.activation == "none"
    assert read_spec(folder, "pooling").head.labels == ("mat",)
    folder = checkpoint("Qwen3ForCausalLM", True)
    assert read_spec(folder).pooling is None
    assert (read_spec(folder, "pooling").pooling, read_spec(folder, "pooling").head) == (("last",), None)


@pytest.mark.parametrize("tokens", [["cat", "mat"], ["mat"]])
def test_logits_of_sentence_transformers_are_refused_by_the_flag_that_serves_them(tokens, checkpoint):
    folder = checkpoint("Qwen3ForCausalLM", True)
    ids = [wordpiece()[0].token_to_id(token) for token in tokens]
    stages = {
        "": "base.modules.transformer.Transformer",
        "1_LogitScore": "cross_encoder.modules.logit_score.LogitScore",
    }
    listed = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in stages.items()]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"})
    )
    (folder / "1_LogitScore").mkdir()
    stated = {"true_token_id": ids[-1], "false_token_id": ids[0] if len(ids) > 1 else None}
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ModelError, match=r"^modules\.json: LogitScore") as refused:
        read_spec(folder)
    config, flag = folder / "config.json", re.search(r"--hf-overrides '(.+)'", str(refused.value)).group(1)
    config.write_text(json.dumps(json.loads(config.read_text()) | json.loads(flag)))
    head = read_spec(folder).head
    assert (head.task, head.tokens, head.differs, head.activation) == ("score", tuple(ids), len(ids) > 1, "none")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"classifier_from_token": "no"}, r"classifier_from_token: must be a list of tokens .* got 'no'"),
        ({"classifier_from_token": []}, r"classifier_from_token: must be a list of tokens"),
        (
            {"classifier_from_token": ["cat"]},
            r"classifier_from_token: must be two tokens for from_2_way_softmax, got 1",
        ),
        ({"classifier_from_token": ["cat", "yess"]}, r"classifier_from_token: 'yess' is no token of .*tokenizer.json"),
        ({"classifier_from_token": ["cat", "\ud800"]}, r"classifier_from_token: '.ud800' is no token of"),
        ({"method": "softmax"}, r"method: must be one of from_2_way_softmax, no_post_processing .* got 'softmax'"),
        ({"method": None}, r"method: must be one of .* got None"),
    ],
)
def test_what_makes_no_head_is_refused_by_field(fields, text, checkpoint):
    folder = checkpoint("Qwen3ForCausalLM", True, **{**RERANKER, **fields})
    with pytest.raises(ModelError, match=text):
        read_spec(folder)
