"""Makes the GGUF files beside it, with the format's own package, and what the originals make of them.

    python tests/worker/weights/ggufs/make.py

Run once in an environment of gguf 0.19.0, sentencepiece 0.2.3, transformers 5.17.0, tokenizers 0.23.3 and tiktoken
0.14.0. `blocks.json` has random blocks of each type, and the SHA-256 of what the package makes of them.
`expected.json` has, for each model, the config of its original, the SHA-256 of every weight as the package dequantizes
it (float32, under its name in a safetensors checkpoint), and the ids of the strings in `strings`.
"""

import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
from blocks import blocks, random_blocks
from families import FAMILIES
from gguf import GGMLQuantizationType as Type
from vocabularies import GEMMA, STRINGS, byte_bpe, sentencepiece_bpe

HERE = Path(__file__).parent
TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
MIXED = {
    "token_embd": Type.Q4_K, "output": Type.Q6_K, "attn_q": Type.Q4_K, "attn_k": Type.Q5_K, "attn_v": Type.Q6_K,
    "attn_output": Type.Q5_0, "ffn_gate": Type.Q4_K, "ffn_up": Type.Q4_K, "ffn_down": Type.Q6_K,
}  # fmt: skip
"""As files of Q4_K_M mix them: rows that are no multiple of 256 are of another type."""
MIXED_TABLES = {
    "token_embd": Type.IQ4_XS, "output": Type.Q6_K, "attn_q": Type.IQ4_XS, "attn_k": Type.IQ4_XS, "attn_v": Type.Q5_K,
    "attn_output": Type.IQ4_NL, "ffn_gate": Type.IQ4_XS, "ffn_up": Type.IQ4_XS, "ffn_down": Type.Q5_K,
}  # fmt: skip
"""As those of IQ4_XS do."""
LOW = {
    "token_embd": Type.Q2_K, "output": Type.Q6_K, "attn_q": Type.Q2_K, "attn_k": Type.Q2_K, "attn_v": Type.Q3_K,
    "attn_output": Type.Q4_0, "ffn_gate": Type.Q2_K, "ffn_up": Type.Q2_K, "ffn_down": Type.Q3_K,
}  # fmt: skip
"""As those of Q2_K do."""
EXPERTS = {f"ffn_{part}_exps": Type.MXFP4 for part in ("gate", "up", "down")} | {"token_embd": Type.Q8_0}
"""As gpt-oss is published."""
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
ROUND = {**SIZES, "hidden_size": 64}
"""Whose heads are hidden size / heads, as Phi-3 has them."""
WIDE = {**SIZES, "hidden_size": 256, "intermediate_size": 512}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def weights(arch, config, seed):
    """Name in a GGUF file -> a matrix or a vector, its rows as transformers has them."""
    random = np.random.default_rng(seed)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    vocabulary = (config["vocab_size"], hidden)
    own = FAMILIES[arch].shapes(config) if arch in FAMILIES else {}
    shapes = {"token_embd.weight": vocabulary, "output_norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = vocabulary
    for n in range(config["num_hidden_layers"]):
        layer = {
            "attn_norm.weight": (hidden,), "attn_q.weight": (queries, hidden), "attn_k.weight": (keys, hidden),
            "attn_v.weight": (keys, hidden), "attn_output.weight": (hidden, queries), "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (inner, hidden), "ffn_up.weight": (inner, hidden), "ffn_down.weight": (hidden, inner),
        }  # fmt: skip
        if arch == "qwen2":
            layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
        if arch == "qwen3":
            layer |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
        layer = {name: shape for name, shape in (layer | own).items() if shape}
        shapes |= {f"blk.{n}.{name}": shape for name, shape in layer.items()}
    return {
        name: (random.standard_normal(shape) * 0.3 + ("norm" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def checkpoint_name(name, own):
    top = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}
    if name == "output.weight":
        return "lm_head.weight"
    if name in top:
        return f"model.{top[name]}"
    _, n, module, tensor = name.split(".")
    return f"model.layers.{n}.{(LAYER | own)[module]}.{tensor}".replace("sinks.weight", "sinks")


def permuted(values, heads):
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def llama3_divisors(theta, head_dim, factor):
    """As `generate_extra_tensors` of the same."""
    divisors = []
    for freq in 1.0 / (theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)):
        wavelen = 2 * np.pi / freq
        if wavelen < 8192 / 4.0:
            divisors.append(1)
        elif wavelen > 8192 / 1.0:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelen - 1.0) / (4.0 - 1.0)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


def add_metadata(writer, config, tokenizer, family):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_token_list(tokenizer["tokens"])
    writer.add_token_types(tokenizer["token_type"])
    if "scores" in tokenizer:
        writer.add_token_scores(tokenizer["scores"])
        writer.add_unk_token_id(tokenizer["unk"])
        writer.add_add_space_prefix(tokenizer["adds_space"])
    if "merges" in tokenizer:
        writer.add_token_merges(tokenizer["merges"])
    writer.add_bos_token_id(tokenizer["bos"])
    writer.add_eos_token_id(tokenizer["eos"])
    writer.add_add_bos_token(tokenizer["adds_bos"])
    writer.add_chat_template(TEMPLATE)
    if family:
        family.add_metadata(writer, config)


def make(
    name, arch, kind, tokenizer, *, num_layers=1, tied=True, stretched=False, files=1, head_dim=8, seed=0, sizes=SIZES
):
    """Writes the file or the files of a model. Returns what is expected of it.

    `kind`: the type of its matrices, or of each by its module's name.
    """
    keys, ids = tokenizer
    family = FAMILIES.get(arch)
    config = {
        "architectures": [family.architecture if family else CLASSES[arch]],
        "model_type": family.model_type if family else arch,
        **sizes,
        "head_dim": head_dim,
        "vocab_size": len(keys["tokens"]),
        "num_hidden_layers": num_layers,
        "max_position_embeddings": 65536 if stretched else 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0 if stretched else 10000.0,
        "tie_word_embeddings": tied,
        "eos_token_id": [keys["eos"]],
    }
    if stretched:
        config["rope_scaling"] = {**LLAMA3, "original_max_position_embeddings": 8192}
    config |= family.config if family else {}
    tensors = weights(arch, config, seed)
    writer = gguf.GGUFWriter(
        HERE / f"{name}.gguf", arch, split_max_tensors=-(-len(tensors) // files) if files > 1 else 0
    )
    add_metadata(writer, config, keys, family)
    digests, random = {}, np.random.default_rng(seed)
    for tensor, values in tensors.items():
        module = tensor.split(".")[-2]
        used = kind.get(module, Type.F32) if isinstance(kind, dict) else kind
        used = Type.F32 if values.ndim == 1 or tensor.endswith(".bias") else used
        stored = blocks(values, used, random)
        meant = gguf.dequantize(stored, used).astype("<f4")
        if family and family.adds_one and "norm" in module:
            meant -= np.float32(1)
        name_there = checkpoint_name(tensor, family.layer if family else {})
        digests[name_there] = hashlib.sha256(meant.tobytes()).hexdigest()
        if arch == "llama" and ".attn_q." in tensor:
            stored = permuted(stored, config["num_attention_heads"])
        if arch == "llama" and ".attn_k." in tensor:
            stored = permuted(stored, config["num_key_value_heads"])
        writer.add_tensor(tensor, stored, raw_dtype=used)
    if stretched:
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config["rope_theta"], config["head_dim"], 8.0))
    for tensor, values in family.extra(config).items() if family else ():
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"config": config, "digests": digests, "ids": [ids[text] for text in STRINGS]}


def main():
    for path in HERE.glob("*.gguf"):
        path.unlink()
    spm = sentencepiece_bpe()
    spm[0].update(bos=1, eos=2, adds_bos=True)
    gemma = sentencepiece_bpe(**GEMMA)
    gemma[0].update(bos=2, eos=1, adds_bos=True)
    by_bytes = {}
    for pre, specials in {
        "gpt-2": ["<|endoftext|>", "<|user|>"],
        "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"],
        "llama-bpe": ["<|begin_of_text|>", "<|eot_id|>", "<extra>"],
        "glm4": ["<|endoftext|>", "<|user|>", "<think>"],
        "gpt-4o": ["<|startoftext|>", "<|return|>", "<|message|>"],
    }.items():
        keys, ids = byte_bpe(pre, specials)
        ends = {
            "gpt-2": "<|endoftext|>", "qwen2": "<|im_end|>", "llama-bpe": "<|eot_id|>", "glm4": "<|user|>",
            "gpt-4o": "<|return|>",
        }  # fmt: skip
        at = keys["tokens"].index
        keys.update(bos=at(specials[0]), eos=at(ends[pre]), adds_bos=pre == "llama-bpe")
        by_bytes[pre] = keys, ids
    expected = {
        "llama-spm-f16": make("llama-spm-f16", "llama", Type.F16, spm, num_layers=2, seed=1),
        "llama3-f32": make("llama3-f32", "llama", Type.F32, by_bytes["llama-bpe"], stretched=True, seed=2),
        "qwen2-bf16": make("qwen2-bf16", "qwen2", Type.BF16, by_bytes["qwen2"], tied=False, seed=3),
        "qwen3-split": make("qwen3-split", "qwen3", Type.F16, by_bytes["qwen2"], files=2, seed=4),
        "llama-q8_0": make("llama-q8_0", "llama", Type.Q8_0, by_bytes["gpt-2"], num_layers=2, head_dim=16, seed=5),
        "llama-q4_0": make("llama-q4_0", "llama", Type.Q4_0, by_bytes["gpt-2"], seed=6),
        "llama-q4_1": make("llama-q4_1", "llama", Type.Q4_1, by_bytes["gpt-2"], tied=False, head_dim=16, seed=7),
        "llama-q5_0": make("llama-q5_0", "llama", Type.Q5_0, by_bytes["gpt-2"], seed=8),
        "llama-q5_1": make("llama-q5_1", "llama", Type.Q5_1, by_bytes["gpt-2"], head_dim=16, seed=9),
        "llama-q4_k_m": make(
            "llama-q4_k_m", "llama", MIXED, by_bytes["gpt-2"], tied=False, head_dim=16, seed=10, sizes=WIDE
        ),
        "llama-iq4_nl": make("llama-iq4_nl", "llama", Type.IQ4_NL, by_bytes["gpt-2"], head_dim=16, seed=11),
        "llama-iq4_xs": make(
            "llama-iq4_xs", "llama", MIXED_TABLES, by_bytes["gpt-2"], tied=False, head_dim=16, seed=12, sizes=WIDE
        ),
        "llama-mxfp4": make("llama-mxfp4", "llama", Type.MXFP4, by_bytes["gpt-2"], tied=False, head_dim=16, seed=13),
        "llama-q2_k": make("llama-q2_k", "llama", LOW, by_bytes["gpt-2"], tied=False, head_dim=16, seed=14, sizes=WIDE),
        "gemma-q8_0": make("gemma-q8_0", "gemma", Type.Q8_0, gemma, head_dim=16, seed=15),
        "gemma2-q8_0": make("gemma2-q8_0", "gemma2", Type.Q8_0, gemma, num_layers=2, head_dim=16, seed=16),
        "gemma3-f16": make("gemma3-f16", "gemma3", Type.F16, gemma, num_layers=6, head_dim=16, seed=17),
        "phi3-q4_0": make("phi3-q4_0", "phi3", Type.Q4_0, spm, tied=False, head_dim=16, seed=18, sizes=ROUND),
        "glm4-q8_0": make("glm4-q8_0", "glm4", Type.Q8_0, by_bytes["glm4"], tied=False, head_dim=16, seed=19),
        "gpt-oss-mxfp4": make(
            "gpt-oss-mxfp4", "gpt-oss", EXPERTS, by_bytes["gpt-4o"], num_layers=2, tied=False, head_dim=16, seed=20
        ),
    }
    (HERE / "blocks.json").write_text(json.dumps(random_blocks(), indent=1) + "\n")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(model)}" for name, model in expected.items())
    content = f'{{"strings": {json.dumps(STRINGS)},\n"models": {{\n{lines}\n}}}}\n'
    (HERE / "expected.json").write_text(content)


if __name__ == "__main__":
    main()
