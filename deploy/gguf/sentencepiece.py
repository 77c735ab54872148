"""tokenizer.json of SentencePiece's BPE with scores, tokenizer.ggml.model "llama"."""

from typing import Any, Final

from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.deploy.gguf.vocabulary import BYTE, NORMAL, TOKENS, Vocabulary, post_processor, token_of
from quire.worker.weights.gguf.names import ARCHITECTURE
from quire.worker.weights.parts import ModelError

SCORES: Final = "tokenizer.ggml.scores"
UNKNOWN: Final = "tokenizer.ggml.unknown_token_id"
UNREAD: Final = ("tokenizer.ggml.precompiled_charsmap",)
SPACE: Final = "▁"
MOST_SPLITS: Final = 1 << 22
"""Most ways, over all tokens, to make one of two others."""
MOST_CHARACTERS: Final = 256
"""Most characters of a token that is made of others."""
MOST_MERGED: Final = 1 << 24
"""Most characters of all merges together: a token is in each of them that makes it."""


def sentencepiece(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The file's content. Raises ModelError."""
    for key in UNREAD:
        if key in metadata:
            raise ModelError(key, "is not read; name the directory of the model's tokenizer.json with --tokenizer")
    if metadata.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        message = "is true, which is not read; name the directory of the model's tokenizer.json with --tokenizer"
        raise ModelError("tokenizer.ggml.remove_extra_whitespaces", message)
    unknown = token_of(metadata, UNKNOWN, vocabulary) if UNKNOWN in metadata else vocabulary.tokens[0]
    tokens = vocabulary.of_model
    if unknown not in tokens:
        raise ModelError(UNKNOWN, f"{unknown!r} is behind all tokens of text; {REMEDY}")
    is_phi3 = metadata.text(ARCHITECTURE, "") == "phi3"
    has_prefix = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepended = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    stripped = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    restored = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": [_stripping(token) for token in vocabulary.added()] if is_phi3 else vocabulary.added(),
        "normalizer": {"type": "Sequence", "normalizers": [*prepended, replaced]},
        "pre_tokenizer": None,
        "post_processor": post_processor(metadata, vocabulary, adds_begin=True),
        "decoder": {"type": "Sequence", "decoders": [restored, {"type": "ByteFallback"}, {"type": "Fuse"}, *stripped]},
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "fuse_unk": True,
            "byte_fallback": _has_bytes(vocabulary),
            "ignore_merges": False,
            "vocab": tokens,
            "merges": _merges(metadata, vocabulary),
        },
    }


def _stripping(token: dict[str, Any]) -> dict[str, Any]:
    """A token of Phi-3, which takes the spaces behind it, as no key says. Source: llama.cpp's src/llama-vocab.cpp."""
    return token | {"rstrip": token["special"] and token["content"] not in ("<unk>", "<s>", "<|endoftext|>")}


def _has_bytes(vocabulary: Vocabulary) -> bool:
    """All 256 bytes are tokens; False where none is."""
    held = {token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == BYTE}
    if held and held != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise ModelError(TOKENS, f"has {len(held)} of the 256 bytes; {REMEDY}")
    return bool(held)


def read_scores(metadata: Metadata, vocabulary: Vocabulary) -> list[float]:
    """One of each token. Raises ModelError."""
    scores = metadata.numbers(SCORES)
    if len(scores) != len(vocabulary.tokens):
        raise ModelError(SCORES, f"has {len(scores)} values for {len(vocabulary.tokens)} tokens; {REMEDY}")
    return scores


def _merges(metadata: Metadata, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a token of two, the highest score first.

    Order among equal scores: as in transformers' `generate_merges`, by which published tokenizer.json were made.
    """
    scores = read_scores(metadata, vocabulary)
    ids = {token: index for index, token in enumerate(vocabulary.tokens) if vocabulary.types[index] == NORMAL}
    if max(map(len, ids), default=0) > MOST_CHARACTERS or sum(map(len, ids)) > MOST_SPLITS:
        raise ModelError(TOKENS, f"has tokens of more than {MOST_CHARACTERS} characters, or too many; {REMEDY}")
    merges: list[tuple[float, str, str]] = []
    merged = 0
    for token, index in ids.items():
        pairs = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        found = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        merged += len(found) * len(token)
        if merged > MOST_MERGED:
            raise ModelError(TOKENS, f"has merges of more than {MOST_MERGED} characters; {REMEDY}")
        merges += [(scores[index], *pair) for pair in sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]]))]
    merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in merges]
