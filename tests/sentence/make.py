"""Makes saved.json beside it: folders that sentence-transformers saves, and its ids, vectors and scores.

    python tests/sentence/make.py

Run once in an environment of sentence-transformers 6.2.0, transformers 5.17.0 and torch 2.13.0. A file that several
folders have is there once.
"""

import base64
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
    Transformer,
)
from tokenizers import processors

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tiny_classifiers import unigram, wordpiece, write_random  # noqa: E402

DIGITS = 6
HIDDEN = 16
SHAPE = {
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 48,
    "initializer_range": 0.3,
}
TEXTS = ["the cat sat on a mat", "dog"]
LONG = ["The dog RAN home on a mat. the page sat on the block of the cache!", "A cat"]
TEMPLATE = "{% for m in messages %}{{ m.role }} <s>{{ m.content }}</s>\n{% endfor %}the"
PAIRS = [["the cat", "sat on a mat"], ["dog", "The page ran home on the mat, the dog sat on a block of the cache"]]
POOLINGS = [
    *Pooling.POOLING_MODES,
    ("mean", "max"),
    ("lasttoken", "mean_sqrt_len_tokens", "weightedmean"),
]
STAGES = {
    "nothing": lambda width: [],
    "Normalize": lambda width: [Normalize()],
    "Dense": lambda width: [Dense(width, 5)],
    "Dense, Normalize": lambda width: [Dense(width, 6, bias=False, activation_function=torch.nn.GELU()), Normalize()],
    "Normalize, Dense": lambda width: [Normalize(), Dense(width, 6, activation_function=None)],
    "residual, Normalize": lambda width: [Dense(width, width, use_residual=True), Normalize()],
    "projected residual": lambda width: [Dense(width, 7, use_residual=True, activation_function=torch.nn.ReLU())],
    "LayerNorm, Dense": lambda width: [_random(LayerNorm(width)), Dense(width, 5)],
    "Dropout, Normalize, Dropout": lambda width: [Dropout(0.5), Normalize(), Dropout(0.5)],
}


def _random(stage):
    for parameter in stage.parameters():
        torch.nn.init.normal_(parameter, mean=0.5)
    return stage


def _base(folder, kind, architecture, **fields):
    tokenizer, settings = unigram() if kind is transformers.LlamaConfig else wordpiece()
    if kind is transformers.LlamaConfig:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
        )
        settings |= {"bos_token": "<s>", "eos_token": "</s>"}
        fields |= {"num_key_value_heads": 1, "bos_token_id": 0, "eos_token_id": 2}
    write_random(folder, architecture, kind(vocab_size=tokenizer.get_vocab_size(), **SHAPE, **fields), 5)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


class Saved:
    """All folders and answers."""

    def __init__(self):
        self.blobs, self.folders = {}, {}

    def files(self, folder):
        found = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "README.md":
                content = path.read_bytes()
                key = hashlib.sha256(content).hexdigest()[:12]
                self.blobs[key] = base64.b64encode(content).decode()
                found[str(path.relative_to(folder))] = key
        return found

    def vectors(self, name, folder, texts, **loading):
        """What the library makes of the texts with what it reads of the folder."""
        model = SentenceTransformer(str(folder), device="cpu", **loading)
        prompt = model.prompts.get(model.default_prompt_name)
        ids = [_ids(model.preprocess([text], prompt=prompt)) for text in texts]
        vectors = model.encode(texts)
        self.folders[name] = {
            "files": self.files(folder),
            "texts": texts,
            "ids": ids,
            "vectors": _rounded(vectors),
            "similarity": round(float(model.similarity_pairwise(vectors[:1], vectors[1:])[0]), DIGITS),
        }

    def scores(self, name, folder, pairs):
        model = CrossEncoder(str(folder), device="cpu")
        prompt = model.prompts.get(model.default_prompt_name)
        self.folders[name] = {
            "files": self.files(folder),
            "pairs": pairs,
            "ids": [_ids(model.preprocess([pair], prompt=prompt)) for pair in pairs],
            "raw": _rounded(model.predict(pairs, activation_fn=torch.nn.Identity())),
            "scores": _rounded(model.predict(pairs)),
        }


def _ids(features):
    return features["input_ids"][0].tolist()


def _rounded(array):
    return [[round(float(x), DIGITS) for x in row] if row.ndim else round(float(row), DIGITS) for row in array]


def _edit(path, **fields):
    config = json.loads(path.read_text()) if path.exists() else {}
    config |= fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def _older(folder, **flags):
    """The names that releases before 5 wrote."""
    stages = json.loads((folder / "modules.json").read_text())
    for stage in stages:
        stage["type"] = f"sentence_transformers.models.{stage['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(stages))
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": HIDDEN} | flags))


def embedding_models(saved, root, bases):
    for base, path in bases.items():
        for pooling in POOLINGS:
            if base == "llama" and pooling == "cls":
                continue
            for stages, make in STAGES.items():
                torch.manual_seed(7)
                transformer = Transformer(path)
                first = Pooling(HIDDEN, pooling)
                width = first.get_embedding_dimension()
                model = SentenceTransformer(modules=[transformer, first, *make(width)], device="cpu")
                name = f"{base}: {pooling if isinstance(pooling, str) else ' + '.join(pooling)}: {stages}"
                folder = root / hashlib.sha256(name.encode()).hexdigest()[:8]
                model.save(str(folder), create_model_card=False)
                saved.vectors(name, folder, TEXTS)


def settings(saved, root, bases):
    def made(name, base="bert", pooling="mean", **fields):
        folder = root / name.replace(" ", "_")
        modules = [Transformer(bases[base]), Pooling(HIDDEN, pooling), Normalize()]
        model = SentenceTransformer(modules=modules, device="cpu", **fields)
        if "max_seq_length" in name:
            model.max_seq_length = 9
        model.save(str(folder), create_model_card=False)
        return folder

    prompts = {"query": "cat: ", "other": "On the mat "}
    saved.vectors("max_seq_length", made("max_seq_length"), LONG)
    folder = made("max_seq_length from the end")
    _edit(folder / "tokenizer_config.json", truncation_side="left")
    saved.vectors("max_seq_length from the end", folder, LONG)
    saved.vectors("prompts", made("prompts", prompts=prompts), TEXTS)
    folder = made("default prompt", prompts=prompts, default_prompt_name="other")
    saved.vectors("default prompt", folder, TEXTS)
    folder = made("max_seq_length of a prompt", "llama", "lasttoken", prompts=prompts, default_prompt_name="query")
    saved.vectors("max_seq_length of a prompt", folder, LONG)
    for kind in ("dot", "euclidean", "manhattan"):
        saved.vectors(kind, made(kind, similarity_fn_name=kind, truncate_dim=11), TEXTS)
    saved.vectors("truncate_dim", made("truncate_dim", truncate_dim=5), TEXTS)
    folder = made("older max_seq_length")
    _older(folder, pooling_mode_cls_token=False, pooling_mode_max_tokens=True, pooling_mode_mean_tokens=True)
    _edit(folder / "sentence_bert_config.json", max_seq_length=7, do_lower_case=False)
    saved.vectors("older max_seq_length", folder, LONG)
    folder = made("older and no flag")
    _older(folder, pooling_mode_cls_token=False)
    saved.vectors("older and no flag", folder, TEXTS)
    folder = made("do_lower_case", "llama", "lasttoken")
    _edit(folder / "sentence_bert_config.json", do_lower_case=True)
    saved.vectors("do_lower_case", folder, LONG)
    saved.vectors("chats", made("chats", "chats", "lasttoken"), LONG)
    folder = made("max_seq_length of chats", "chats", "mean", prompts=prompts, default_prompt_name="other")
    _edit(folder / "tokenizer_config.json", model_max_length=35)
    saved.vectors("max_seq_length of chats", folder, LONG)
    folder = made("arguments of the tokenizer")
    _edit(folder / "sentence_bert_config.json", max_seq_length=20, processor_kwargs={"model_max_length": 8})
    saved.vectors("arguments of the tokenizer", folder, LONG)
    folder = made("arguments of a text")
    _edit(folder / "sentence_bert_config.json", processing_kwargs={"text": {"max_length": 6}})
    saved.vectors("arguments of a text", folder, LONG)
    folder = made("add_eos_token", "llama", "lasttoken")
    _edit(folder / "tokenizer_config.json", add_bos_token=True, add_eos_token=True)
    # by the file alone transformers 5 adds none, which 4 did
    saved.vectors("add_eos_token", folder, LONG, processor_kwargs={"add_bos_token": True, "add_eos_token": True})


def cross_encoders(saved, root, base, bases):
    def made(name, **fields):
        folder = root / name.replace(" ", "_")
        CrossEncoder(base, device="cpu", **fields).save(str(folder), create_model_card=False)
        return folder

    for kind, path in bases.items():
        torch.manual_seed(5)
        last = Dense(9, 1, activation_function=None, module_output_name="scores")
        stages = [Pooling(HIDDEN, "lasttoken" if kind == "llama" else "mean"), Dense(HIDDEN, 9), Dropout(0.2), last]
        model = CrossEncoder(modules=[Transformer(path), *stages], device="cpu", max_length=14)
        model.save(str(root / f"staged_{kind}"), create_model_card=False)
        saved.scores(f"scores: stages of {kind}", root / f"staged_{kind}", PAIRS)
    torch.manual_seed(3)
    saved.scores("scores", made("scores"), PAIRS)
    saved.scores("scores: Identity", made("scores: Identity", activation_fn=torch.nn.Identity()), PAIRS)
    saved.scores("scores: max_length", made("scores: max_length", max_length=14), PAIRS)
    prompted = made("scores: prompt", prompts={"q": "the "}, default_prompt_name="q")
    saved.scores("scores: prompt", prompted, PAIRS)
    older = made("scores: older")
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (older / name).unlink(missing_ok=True)
    _edit(older / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    saved.scores("scores: older", older, PAIRS)


def main():
    saved = Saved()
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        bases = {
            "bert": _base(root / "bert", transformers.BertConfig, "BertModel"),
            "llama": _base(root / "llama", transformers.LlamaConfig, "LlamaModel"),
        }
        embedding_models(saved, root, bases)
        bases["chats"] = _base(root / "chats", transformers.LlamaConfig, "LlamaModel")
        _edit(root / "chats" / "tokenizer_config.json", chat_template=TEMPLATE)
        settings(saved, root, bases)
        labelled = _base(root / "labelled", transformers.BertConfig, "BertForSequenceClassification", num_labels=1)
        del bases["chats"]
        cross_encoders(saved, root, labelled, bases)
    content = {"blobs": saved.blobs, "folders": saved.folders}
    (HERE / "saved.json").write_text(json.dumps(content, separators=(",", ":")).replace('"files"', '\n"files"') + "\n")


if __name__ == "__main__":
    main()
