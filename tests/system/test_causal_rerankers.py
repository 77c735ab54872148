"""Engines of generating models as rerankers, started as vLLM's users write it: scores are those of transformers' logits
of two tokens behind the rendered template, or behind the two texts where there is none."""

import json
import urllib.error
import urllib.request

import jinja2
import numpy as np
import pytest
import torch
import transformers
from parts.clock import GUARD
from tiny_classifiers import KINDS, SHAPE, wordpiece

from quire.proto.api import RequestError, ScoreRequest

OVERRIDES = json.dumps(
    {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["cat", "mat"],
        "is_original_qwen3_reranker": True,
    }
)
TEMPLATE = (
    'page: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("home") }}\n'
    'the: {{ (messages | selectattr("role", "eq", "query") | first).content }}\n'
    'a: {{ (messages | selectattr("role", "eq", "document") | first).content }} [MASK]'
)
QUERY = "the cat sat on a mat"
DOCUMENTS = ["a dog ran home", "the cat sat on the mats?", "", "pages, blocks; caches " * 4]


def write(folder):
    """A generating model with BERT's kind of tokens."""
    own = KINDS["Qwen3ForSequenceClassification"][2]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(**SHAPE, **own, tie_word_embeddings=True)
        ).save_pretrained(folder)
    tokenizer, settings = wordpiece()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module", params=["--chat-template", pytest.param("its own", marks=pytest.mark.thorough), "none"])
def served(request, serve, tmp_path_factory):
    """(engine, folder, how a pair's text is made)"""
    folder = tmp_path_factory.mktemp("causal_reranker")
    write(folder)
    flags = []
    if request.param == "--chat-template":
        (folder / "score.jinja").write_text(TEMPLATE)
        flags = ["--chat-template", str(folder / "score.jinja")]
    elif request.param == "its own":
        (folder / "chat_template.jinja").write_text(TEMPLATE)

    def text(query, document, instruction=None):
        if request.param == "none":
            return query + document
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if instruction is not None:
            messages.insert(0, {"role": "system", "content": instruction})
        return jinja2.Template(TEMPLATE).render(messages=messages)

    engine = serve(str(folder), "--served-model-name", "reranker", "--hf_overrides", OVERRIDES, *flags)
    return engine, folder, text, request.param


def over(folder, texts, most=None):
    """What transformers' logit of "mat" has over that of "cat" behind each text."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    low, high = tokenizer.convert_tokens_to_ids(["cat", "mat"])
    found = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids[:, :most]
        with torch.inference_mode():
            row = model(ids).logits[0, -1].double()
        found.append(float(row[high] - row[low]))
    return np.array(found)


def sigmoid(numbers):
    return 1 / (1 + np.exp(-numbers))


def test_scores_are_the_softmax_of_both_tokens(served):
    engine, folder, text, _ = served
    raw = over(folder, [text(QUERY, one) for one in DOCUMENTS])
    scores = engine.client.score(ScoreRequest(query=QUERY, documents=DOCUMENTS)).scores
    np.testing.assert_allclose(scores, sigmoid(raw), atol=2e-5)
    plain = engine.client.score(ScoreRequest(query=QUERY, documents=DOCUMENTS, use_activation=False)).scores
    np.testing.assert_allclose(plain, raw, atol=5e-5)
    pairs = engine.client.score(ScoreRequest(queries=DOCUMENTS[:2], documents=DOCUMENTS[2:])).scores
    raw = over(folder, [text(DOCUMENTS[0], DOCUMENTS[2]), text(DOCUMENTS[1], DOCUMENTS[3])])
    np.testing.assert_allclose(pairs, sigmoid(raw), atol=2e-5)


def test_an_instruction_is_shown_or_refused(served):
    engine, folder, text, kind = served
    base_url = engine.wait_for_line(r"HTTP on (http\S+)").group(1)
    body = {"query": QUERY, "documents": DOCUMENTS[:1], "instruction": "dog cache"}
    request = urllib.request.Request(
        f"{base_url}/rerank", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    if kind == "none":
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=GUARD)
        error = json.load(refused.value)["error"]
        assert (error["param"], "--chat-template FILE" in error["message"]) == ("instruction", True)
        return
    with urllib.request.urlopen(request, timeout=GUARD) as answer:
        (found,) = json.load(answer)["results"]
    raw = over(folder, [text(QUERY, DOCUMENTS[0], "dog cache")])
    np.testing.assert_allclose(found["relevance_score"], sigmoid(raw[0]), atol=2e-5)


def test_marks_count_where_the_client_writes_the_prompt(served):
    engine, folder, text, kind = served
    marked = "[MASK] the mat [SEP]"
    scores = engine.client.score(ScoreRequest(query=QUERY, documents=[marked], use_activation=False)).scores
    parsed = over(folder, [text(QUERY, marked)])
    assert np.allclose(scores, parsed, atol=5e-5) == (kind == "none")


def test_texts_are_cut_and_the_template_stays(served):
    engine, folder, text, kind = served
    words = ["cat", "dog", "home", "page", "block"] * 20
    long = " ".join(words)
    asked = ScoreRequest(query="the mat", documents=[long], truncate_prompt_tokens=40, use_activation=False)
    (score,) = engine.client.score(asked).scores
    if kind == "none":
        return  # the end that a client wrote is cut off, as it asked
    num_around = len(
        transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))(text("", "")).input_ids
    )
    kept = " ".join(words[: 40 - num_around - 2])
    np.testing.assert_allclose(score, over(folder, [text("the mat", kept)])[0], atol=5e-5)
    asked = ScoreRequest(
        query=long, documents=[long], max_tokens_per_query=3, max_tokens_per_doc=2, use_activation=False
    )
    (score,) = engine.client.score(asked).scores
    np.testing.assert_allclose(score, over(folder, [text("cat dog home", "cat dog")])[0], atol=5e-5)
    with pytest.raises(RequestError, match=r"must be at least \d+ for a pair in this model's template, got 3"):
        engine.client.score(ScoreRequest(query="a", documents=["b"], truncate_prompt_tokens=3))
    with pytest.raises(RequestError, match="truncate_prompt_tokens") as refused:
        engine.client.score(ScoreRequest(query="a", documents=["b", long * 3]))
    assert refused.value.field == "documents[1]"
