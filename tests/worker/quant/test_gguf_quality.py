"""The embedded model as GGUF files: its tokenizer, and what each type costs in perplexity."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_bytes import gguf
from gguf_kinds import stored
from test_quality import MODEL, perplexity

from quire.deploy.gguf.folder import make_folder

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def metadata():
    """The embedded model's config and tokenizer, as keys."""
    config = json.loads((MODEL / "config.json").read_text())
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    vocab, special = tokenizer["model"]["vocab"], {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=vocab.get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {
        "general.architecture": "llama",
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """`file(kind)`: the embedded model with its matrices of a type, and the embedding, which is its head, of 8 bits.

    Files of 4 bits are made so: the head decides between close tokens.
    """
    keys = metadata()
    tensors = {}
    for name, weight in load_file(MODEL / "model.safetensors").items():
        values = weight.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = values.reshape(-1, 2, 32, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        _, _, rest = name.partition("model.layers.")
        number, _, module = rest.removesuffix(".weight").partition(".")
        top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
        tensors[top.get(name) or f"blk.{number}.{NAMES[module]}.weight"] = values

    def make(kind):
        path = tmp_path_factory.mktemp(kind) / "model.gguf"
        kinds = {"token_embd.weight": "F32" if kind == "F32" else "Q8_0"}
        path.write_bytes(gguf(keys, {name: stored(one, kinds.get(name, kind)) for name, one in tensors.items()}))
        make_folder(path, path.parent / "made", with_tokenizer=True)
        return path.parent / "made"

    return make


@pytest.fixture(scope="module")
def texts():
    return [Path(module.__file__).read_text(encoding="utf-8") for module in (textwrap, json.decoder)]


@pytest.fixture(scope="module")
def dense(texts):
    """The perplexity in float32."""
    return perplexity(MODEL, "none", texts)


def test_the_embedded_model_is_the_same_as_a_file(file, texts, dense):
    folder = file("F32")
    made, own = (Tokenizer.from_file(str(path / "tokenizer.json")) for path in (folder, MODEL))
    for text in (*texts, "<|im_start|>user\n日本<|im_end|>"):
        assert made.encode(text).ids == own.encode(text).ids
    assert perplexity(folder, "none", texts) == pytest.approx(dense, rel=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("Q8_0", 0.001), ("Q4_0", 0.015), ("Q4_1", 0.015), ("Q5_0", 0.005), ("Q5_1", 0.005),
        ("Q4_K", 0.015), ("Q5_K", 0.005), ("Q6_K", 0.001),
        ("IQ4_NL", 0.015), ("IQ4_XS", 0.015), ("MXFP4", 0.02),
    ],
)  # fmt: skip
def test_the_perplexity_of_each_type_is_near_that_of_fp32(file, texts, dense, kind, most):
    """With activations as they are, and with those of 8 bits."""
    folder = file(kind)
    exact, rounded = (perplexity(folder, "none", texts, dtype=dtype) for dtype in ("float32", "auto"))
    print(f"{kind}: {exact / dense - 1:+.3%}, rounded activations {rounded / exact - 1:+.3%}")
    assert exact == pytest.approx(dense, rel=most)
    assert rounded == pytest.approx(exact, rel=0.0025)
    assert len({dense, exact, rounded}) == 3
