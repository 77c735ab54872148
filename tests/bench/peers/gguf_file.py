"""`PYTHON gguf_file.py CHECKPOINT KIND FILE`: the checkpoint of `shape.py` as GGUF, KIND a type of gguf's, like Q8_0.

Runs in llama.cpp's environment: it needs `gguf` and numpy, nothing of quire.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

PARTS = {
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


def tensors(path: Path) -> dict[str, np.ndarray]:
    """A file of safetensors that holds float32 alone."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, entry in json.loads(content[8:begin]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            values = np.frombuffer(content[begin + first : begin + end], np.float32)
            found[name] = values.reshape(entry["shape"])
    return found


def gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    _, _, layer, *part, _ = name.split(".")
    return f"blk.{layer}.{PARTS['.'.join(part)]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp turns neighbours, checkpoints of transformers the halves of a head."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main() -> None:
    folder, kind, file = Path(sys.argv[1]), gguf.GGMLQuantizationType[sys.argv[2]], sys.argv[3]
    shape = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_rope_dimension_count(shape["hidden_size"] // shape["num_attention_heads"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_vocab_size(shape["vocab_size"])
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(model["vocab"]))
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(model["vocab"]) - 1))
    writer.add_token_merges(model["merges"])
    writer.add_bos_token_id(shape["bos_token_id"])
    writer.add_eos_token_id(shape["eos_token_id"])
    for name, values in tensors(folder / "model.safetensors").items():
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                values = interleaved(values, shape[heads])
        stored = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
