"""Checkpoints that give labels numbers, with tokenizers that know pairs: random weights from a seed."""

import json
import string

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SHAPE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "initializer_range": 0.15,
}
WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "home", "page", "block", "cache", "##s", "##ed", "##ing"]


def wordpiece():
    """BERT's kind: tokens of a pair's second text are of type 1."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*string.ascii_lowercase, *string.digits, *".,?!"]
    words = list(dict.fromkeys([*specials, *WORDS, *letters, *(f"##{letter}" for letter in letters)]))
    made = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in specials])
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made, {"tokenizer_class": "BertTokenizerFast", "pad_token": "[PAD]", "cls_token": "[CLS]"}


def unigram():
    """XLM-RoBERTa's kind: two separators between the texts, and one type."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [f"▁{word}" for word in WORDS if not word.startswith("##")] + list(string.printable.strip()) + ["▁", "é"]
    vocabulary = [(one, 0.0) for one in specials]
    vocabulary += [(one, -2.0 - index / 50) for index, one in enumerate(dict.fromkeys(pieces))]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in specials])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    # the library's class for it makes a tokenizer of its own
    return made, {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "cls_token": "<s>"}


KINDS = {
    "BertForSequenceClassification": (transformers.BertConfig, wordpiece, {}),
    "XLMRobertaForSequenceClassification": (
        transformers.XLMRobertaConfig,
        unigram,
        {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    ),
    "Qwen3ForSequenceClassification": (
        transformers.Qwen3Config,
        wordpiece,
        {"num_key_value_heads": 2, "head_dim": 16, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0},
    ),
}


def write_random(folder, architecture, config, seed):
    """A model of the library, its norms and biases not the ones and zeros that would hide a mistake."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, architecture)(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                gain = "norm" in name.lower() and name.endswith("weight")
                torch.nn.init.normal_(parameter, mean=float(gain), std=0.2)
    model.save_pretrained(folder)


def write(folder, architecture, **fields):
    """A checkpoint of an architecture of `KINDS`, or its kin that labels tokens, in `folder`; `fields`: its config."""
    kind, tokenizer_of, own = KINDS[architecture.replace("ForTokenClassification", "ForSequenceClassification")]
    write_random(folder, architecture, kind(**SHAPE, **own, **fields), 11)
    tokenizer, settings = tokenizer_of()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def logits(folder, pairs, most=None):
    """transformers' logits of each pair of texts, or of a text alone; the longer one of a pair is cut first."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for pair in pairs:
        texts = (pair,) if isinstance(pair, str) else pair
        cut = {} if most is None else {"truncation": "longest_first", "max_length": most}
        # lists: an empty second text beside a text alone would count as none
        inputs = tokenizer(*([text] for text in texts), return_tensors="pt", return_token_type_ids=True, **cut)
        if getattr(model.config, "type_vocab_size", 0) < 2:
            del inputs["token_type_ids"]
        with torch.inference_mode():
            found.append(model(**inputs).logits[0])
    return torch.stack(found).double().numpy()
