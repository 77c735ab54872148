"""tokenizer.json of BERT's WordPiece, tokenizer.ggml.model "bert"."""

from typing import Any, Final

from quire.deploy.gguf.byte_bpe import PRE
from quire.deploy.gguf.enclosed import NAME_ANOTHER, check_kinds, read_enclosed
from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.deploy.gguf.vocabulary import CONTROL, TOKENS, UNKNOWN, Vocabulary
from quire.worker.weights.parts import ModelError

PROVEN: Final = ("jina-v2-en", "bert-bge")
"""Names of the tokenizer of uncased English BERT: conversions tell it by the ids that it gives to a text."""
NORMALIZED: Final = ("tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.strip_accents")
UNKNOWN_ID: Final = "tokenizer.ggml.unknown_token_id"
SPACE: Final = "▁"
INSIDE: Final = "##"
"""Mark of tokens within a word in the original; a file marks those that begin a word instead, by a space."""
BEGIN, END, UNKNOWN_TOKEN = 101, 102, 100
"""Ids of special tokens where the metadata does not say."""
LONGEST_WORD: Final = 100
"""Characters of a word behind which it is unknown."""


def wordpiece(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The file's content. ModelError for a tokenizer that is not known."""
    name = metadata.text(PRE, "default")
    if name not in PROVEN:
        known = ", ".join(PROVEN)
        raise ModelError(PRE, f"{name[:64]!r} is not proven equal to the model's own; proven: {known}; {NAME_ANOTHER}")
    for key in NORMALIZED:
        if not metadata.flag(key, True):
            raise ModelError(key, f"is false, and {name} lowers letters and drops accents; {NAME_ANOTHER}")
    check_kinds(vocabulary)
    restored = Vocabulary(_restored(vocabulary), vocabulary.types)
    unknown = metadata.integer(UNKNOWN_ID, UNKNOWN_TOKEN, least=0)
    if unknown >= len(restored.used):
        raise ModelError(UNKNOWN_ID, f"{unknown} is no token, there are {len(restored.used)}; {REMEDY}")
    enclosed = read_enclosed(metadata, restored, (BEGIN, END))
    return {
        "version": "1.0",
        "added_tokens": restored.added(),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": enclosed.template(num_between=1, second_type=1),
        "decoder": {"type": "WordPiece", "prefix": INSIDE, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": restored.tokens[unknown],
            "continuing_subword_prefix": INSIDE,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": {token: index for index, token in enumerate(restored.used)},
        },
    }


def _restored(vocabulary: Vocabulary) -> tuple[str, ...]:
    """The original's tokens. Older conversions mark nothing in brackets, special or not."""
    tokens = []
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in (CONTROL, UNKNOWN) or (token.startswith("[") and token.endswith("]")):
            tokens.append(token)
        else:
            tokens.append(token[1:] if token.startswith(SPACE) else INSIDE + token)
    if "" in tokens or len(set(tokens)) != len(tokens):
        raise ModelError(TOKENS, f"are not those of a WordPiece with spaces before words; {REMEDY}")
    return tuple(tokens)
