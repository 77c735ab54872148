"""Vocabularies of the models, trained on a text here, and what their originals make of some strings."""

import base64
import io
import json
import tempfile
from pathlib import Path

import sentencepiece
import tiktoken_ext.openai_public as openai
from gguf import TokenType
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

openai.load_tiktoken_bpe = lambda *_, **__: {}
"""Its patterns are wanted, not the vocabularies, which it would fetch."""
ROOT = Path(__file__).parents[4]
TEXT = (ROOT / "LICENSE").read_text() + "Grüße, naïve café — 東京の天気 привет мир 12345 it's we'll DON'T\n" * 20
STRINGS = [
    "",
    " ",
    "   three spaces   ",
    "Hello, world! It's we'll DON'T they'Ve i'M",
    "1 12 123 1234 12345 1,234.56 ²³ ½ Ⅷ ٣٤٥",
    "tabs\tand\nnew\n\n lines \r\n\r\n  end  \n",
    "naïve café Grüße ÅÅ ﬁ",
    "cafe\u0301 e\u0301\u0301 A\u030a",
    "東京の天気は? привет, мир! مرحبا שלום हिन्दी ไทย",
    "👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 🤷🏽",
    "\u00a0\u2003\u200b\u3000 odd\u2028spaces\u0085",
    "def f(x):\n    return {x['a']: [1, 2], **y}  # done!!! ...",
    "a_b-c/d\\e|f&g==h!=i <|notspecial|> [INST] </s",
    "\x00\x01\x7f control",
    "\u017ftreng KELVIN \u212a's 'S '\u017f",
    "x" * 40 + " " * 17 + "y",
    "▁under▁score",
    "\U0001d518\U0001d52b\U0001d526 \U0010ffff \ufffd \ue000",
]


def trained(pre_tokenizer, size):
    """Vocabulary and merges of a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def byte_bpe(pre, specials):
    """Keys of the metadata, and the original's ids of the strings."""
    if pre == "gpt-2":
        vocab, merges = trained(GPT2Tokenizer()._tokenizer.pre_tokenizer, 300)
        original = GPT2Tokenizer(vocab={**vocab, specials[0]: len(vocab)}, merges=merges)._tokenizer
    elif pre == "qwen2":
        vocab, merges = trained(Qwen2Tokenizer()._tokenizer.pre_tokenizer, 300)
        original = Qwen2Tokenizer(vocab=vocab, merges=merges)._tokenizer
    else:
        vocab, merges, original = by_rank(
            openai.o200k_base()["pat_str"] if pre == "gpt-4o" else TikTokenConverter().pattern
        )
    tokens = [*sorted(vocab, key=vocab.get), *specials]
    types = [TokenType.NORMAL] * len(vocab) + [TokenType.CONTROL] * (len(specials) - 1) + [TokenType.USER_DEFINED]
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(merge) for merge in merges],
    }
    return keys, {text: original.encode(text, add_special_tokens=False).ids for text in STRINGS}


def by_rank(pattern):
    """As Meta's converter of Llama 3 makes its tokenizer: out of a list of tokens by rank. So do those of GLM-4, and of
    gpt-oss, whose pattern is tiktoken's."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    words = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    vocab, _ = trained(words, 320)
    of_char = {char: byte for byte, char in bytes_to_unicode().items()}
    with tempfile.NamedTemporaryFile("wb", suffix=".tiktoken") as file:
        for token in sorted(vocab, key=vocab.get):
            file.write(base64.b64encode(bytes(of_char[char] for char in token)) + f" {vocab[token]}\n".encode())
        file.flush()
        converter = TikTokenConverter(file.name, pattern=pattern)
        vocab, merges = converter.extract_vocab_merges_from_model(file.name)
        return vocab, merges, converter.converted()


GEMMA = {
    "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "add_dummy_prefix": False,
    "user_defined_symbols": ["<start_of_turn>", "▁▁", "▁▁▁", "\n\n"],
}  # fmt: skip
"""As the vocabularies of Gemma are: no space before a text, and runs of spaces and lines are tokens of their own."""


def sentencepiece_bpe(**changed):
    """Keys of the metadata, and SentencePiece's own ids of the strings."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=made,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        character_coverage=0.99,
        minloglevel=2,
        **changed,
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    ids = range(original.get_piece_size())
    types = [
        TokenType.UNKNOWN
        if original.is_unknown(token)
        else TokenType.CONTROL
        if original.is_control(token)
        else TokenType.BYTE
        if original.is_byte(token)
        else TokenType.USER_DEFINED
        if original.id_to_piece(token) in changed.get("user_defined_symbols", ())
        else TokenType.NORMAL
        for token in ids
    ]
    keys = {
        "model": "llama",
        "pre": "default",
        "tokens": [
            piece.replace("▁", " ") if kind == TokenType.USER_DEFINED else piece  # as llama.cpp's conversion has them
            for piece, kind in zip(map(original.id_to_piece, ids), types, strict=True)
        ],
        "unk": original.unk_id(),
        "adds_space": changed.get("add_dummy_prefix", True),
        "scores": [original.get_score(token) for token in ids],
        "token_type": types,
    }
    return keys, {text: original.encode(text) for text in STRINGS}
