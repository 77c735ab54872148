"""GGUF files of encoders, laid out as llama.cpp's convert_hf_to_gguf.py lays them out (conversion/bert.py)."""

import json

import numpy as np
from gguf_bytes import gguf
from gguf_kinds import stored

TOP = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DROPPED = ("pooler.", "embeddings.position_ids", "cls.")
ALWAYS_F32 = ("position_embd.weight", "token_types.weight")
TYPE_COUNT = "tokenizer.ggml.token_type_count"
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5


def gguf_name(name):
    if name in TOP:
        return TOP[name]
    _, _, layer, module = name.split(".", 3)
    module, _, tensor = module.rpartition(".")
    return f"blk.{layer}.{LAYER[module]}.{tensor}"


def tensors_of(weights, kind, first_position=0, squeezed=False):
    """Tensors of a file out of weights by their names in a checkpoint, without what is not converted.

    `squeezed`: a table of one row is a vector, as in files of 2024.
    """
    tensors = {}
    for name, values in weights.items():
        if name.startswith(DROPPED):
            continue
        to = gguf_name(name)
        values = values[first_position:] if to == "position_embd.weight" else values
        number, shape, raw = stored(np.ascontiguousarray(values), "F32" if to in ALWAYS_F32 else kind)
        tensors[to] = number, shape[-1:] if squeezed and shape[0] == 1 else shape, raw
    return tensors


def sizes(config, first_position=0, pooling=1):
    """The keys of an architecture. `config`: fields of a config.json."""
    keys = {
        "context_length": config["max_position_embeddings"] - first_position,
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "attention.causal": False,
        "pooling_type": pooling,
    }
    return {"general.architecture": "bert", **{f"bert.{key}": value for key, value in keys.items()}}


def special_ids(**ids):
    """Ids of special tokens, by the format's names."""
    spelled = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
    return {f"tokenizer.ggml.{spelled.get(name, name)}_token_id": token for name, token in ids.items()}


def wordpiece_keys(tokens, controls, pre="jina-v2-en", num_types=2):
    """`tokens` of a vocab.txt, of which `controls` are special: words begin with a mark, their insides with none."""
    marked = [token if token in controls else token[2:] if token.startswith("##") else "▁" + token for token in tokens]
    ids = {token: tokens.index(token) for token in controls}
    return {
        TYPE_COUNT: num_types,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": marked,
        "tokenizer.ggml.token_type": [CONTROL if token in controls else NORMAL for token in tokens],
        **special_ids(bos=ids["[CLS]"], eos=ids["[SEP]"], unk=ids["[UNK]"], sep=ids["[SEP]"], pad=ids["[PAD]"]),
        **special_ids(cls=ids["[CLS]"], mask=ids["[MASK]"]),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_sep_token": False,
        "tokenizer.ggml.normalizer.lowercase": True,
    }


REPLACED = {
    "\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u2003": " ", "\u00ad": "", "\u200d": "",
    "ﬁ": "fi", "\uff21": "A", "½": "1\u20442", "e\u0301": "é", "…": "...", "㎏": "kg", "ﷺ": "صلى",
}  # fmt: skip
"""What SentencePiece's table of NFKC does to some characters."""


def charsmap(replaced):
    """SentencePiece's table. The trie spends 256 units on the children of each node, so it needs no search."""
    nodes, texts = [{}], b""
    for key, text in replaced.items():
        here = 0
        for byte in key.encode():
            if byte not in nodes[here]:
                nodes[here][byte] = len(nodes)
                nodes.append({})
            here = nodes[here][byte]
        nodes[here][0] = len(texts)
        texts += text.encode() + b"\0"
    units = np.zeros(256 * (len(nodes) + 1), np.uint32)
    places = {0: 0}
    for node, children in enumerate(nodes):
        base, place = 256 * (node + 1), places[node]
        units[place] |= np.uint32((base ^ place) << 10 | (256 if 0 in children else 0))
        for byte, child in children.items():
            if byte:
                places[child], units[base ^ byte] = base ^ byte, byte
            else:
                units[base] = child | 1 << 31
    raw = units.astype("<u4").tobytes()
    return len(raw).to_bytes(4, "little") + raw + texts


def unigram_keys(vocabulary, table=b"", has_mask=False):
    """`vocabulary`: (token, score) of a tokenizer.json of XLM-RoBERTa, the mask last.

    `has_mask`: as of a tokenizer.json; else as of SentencePiece's model, which has no mask.
    """
    tokens, scores = ([one[place] for one in vocabulary] for place in (0, 1))
    types = [CONTROL] * 3 + [UNKNOWN] + [NORMAL] * (len(tokens) - 5) + [CONTROL]
    if not has_mask:
        tokens[-1], scores[-1], types[-1] = f"[PAD{len(tokens) - 2}]", -10000.0, UNUSED
    keys = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_space_prefix": True,
        TYPE_COUNT: 1,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        **special_ids(bos=0, eos=2, unk=3, sep=2, pad=1, cls=0, mask=len(tokens) - 1),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_sep_token": True,
    }
    return keys | ({"tokenizer.ggml.precompiled_charsmap": table} if table else {})


def xlm_roberta(texts, size, table):
    """transformers' tokenizer with a vocabulary trained on these texts, and the (token, score) of it."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, trainers
    from transformers import XLMRobertaTokenizer

    trained = Tokenizer(models.Unigram())
    trained.normalizer = normalizers.Precompiled(table)
    trained.pre_tokenizer = XLMRobertaTokenizer()._tokenizer.pre_tokenizer
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=specials, unk_token="<unk>", show_progress=False)
    trained.train_from_iterator(texts, trainer)
    pieces = [
        (trained.id_to_token(index), score)
        for index, (_, score) in enumerate(json.loads(trained.to_str())["model"]["vocab"])
    ]
    vocabulary = [(token, float(np.float32(score))) for token, score in [*pieces, ("<mask>", 0.0)]]
    mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    original = XLMRobertaTokenizer(vocab=vocabulary, _spm_precompiled_charsmap=table, mask_token=mask)
    return original._tokenizer, vocabulary


def write(path, metadata, tensors):
    path.write_bytes(gguf(metadata, tensors))
    return path


LETTERS = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("a", -1.0), ("<mask>", 0.0)]
SMALL = {
    "max_position_embeddings": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "layer_norm_eps": 1e-5,
}
BERT = sizes(SMALL) | wordpiece_keys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"], SPECIALS)
"""Metadata of a whole model of a layer."""
XLM_ROBERTA = sizes(SMALL) | unigram_keys(LETTERS, charsmap({"A": "a", "\t": " "})) | {TYPE_COUNT: 2}
"""Another, whose tensors are the same."""
TENSORS = {
    "token_embd.weight": (7, 32),
    "position_embd.weight": (64, 32),
    "token_types.weight": (2, 32),
    **{f"token_embd_norm.{name}": (32,) for name in ("weight", "bias")},
    **{f"blk.0.{module}.weight": (32,) if "norm" in module else (32, 32) for module in LAYER.values()},
    **{f"blk.0.{module}.bias": (32,) for module in LAYER.values()},
}
