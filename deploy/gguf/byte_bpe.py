"""tokenizer.json of byte-level BPE, tokenizer.ggml.model "gpt2", of decoders and of RoBERTa."""

from dataclasses import dataclass
from typing import Any, Final

from quire.deploy.gguf.enclosed import NAME_ANOTHER, check_kinds, read_enclosed, with_mask
from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.deploy.gguf.vocabulary import MERGES, Vocabulary, post_processor
from quire.worker.weights.parts import ModelError

PRE: Final = "tokenizer.ggml.pre"
ROBERTA: Final = "roberta-bpe"


@dataclass(frozen=True, slots=True)
class Split:
    """A way to cut a text into words, before their bytes are merged."""

    pattern: str | None
    """None: the pattern that is part of the library's ByteLevel."""
    composes: bool = False
    """Characters are composed first (NFC)."""
    ignores_merges: bool = False
    """A word that is a token is taken whole, whatever the merges say."""
    adds_begin: bool = False
    """The begin token is put before a text, where the metadata does not say."""


CL100K: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = (rf"[\p{{{case}}}\p{{Lm}}\p{{Lo}}\p{{M}}]" for case in ("Lu}\\p{Lt", "Ll"))
_ENDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDS}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDS}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Patterns of tiktoken's two vocabularies."""
SPLITS: Final = {
    "gpt-2": Split(None),
    ROBERTA: Split(None),
    "llama-bpe": Split(CL100K, ignores_merges=True, adds_begin=True),
    **dict.fromkeys(("glm4", "chatglm-bpe", "dbrx"), Split(CL100K, ignores_merges=True)),
    "gpt-4o": Split(O200K, ignores_merges=True),
    "qwen2": Split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        composes=True,
    ),
}
"""Name in the metadata -> split; each is proven equal to the original by a test. GLM-4 has two of them, Phi-4 `dbrx`,
and gpt-oss, like Phi-4-mini, `gpt-4o`."""


def byte_bpe(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The file's content. ModelError for a split that is not known, and for merges of what is no token."""
    name = metadata.text(PRE, "default")
    if name not in SPLITS:
        raise ModelError(
            PRE,
            f"{name[:64]!r} is not proven equal to the model's own; proven: {', '.join(SPLITS)}; name the directory of "
            "the model's tokenizer.json with --tokenizer",
        )
    split, tokens = SPLITS[name], vocabulary.of_model
    return {
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "NFC"} if split.composes else None,
        "pre_tokenizer": _pre_tokenizer(split),
        "post_processor": post_processor(metadata, vocabulary, split.adds_begin),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": split.ignores_merges,
            "vocab": tokens,
            "merges": _merges(metadata, tokens),
        },
    }


def _pre_tokenizer(split: Split) -> dict[str, Any]:
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not split.pattern}
    if split.pattern is None:
        return by_bytes
    words = {"type": "Split", "pattern": {"Regex": split.pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [words, by_bytes]}


def _merges(metadata: Metadata, tokens: dict[str, int]) -> list[list[str]]:
    merges = []
    for merge in metadata.texts(MERGES):
        left, _, right = merge.partition(" ")
        if left not in tokens or right not in tokens or left + right not in tokens:
            raise ModelError(MERGES, f"{merge[:64]!r} does not make a token of two; {REMEDY}")
        merges.append([left, right])
    return merges


def roberta(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The file's content: words as GPT-2 has them, special tokens as BERT. Raises ModelError."""
    if (name := metadata.text(PRE, "default")) != ROBERTA:
        raise ModelError(
            PRE, f"{name[:64]!r} is not proven equal to the encoder's own; proven: {ROBERTA}; {NAME_ANOTHER}"
        )
    check_kinds(vocabulary)
    content = byte_bpe(metadata, vocabulary)
    content["added_tokens"] = with_mask(metadata, content["added_tokens"])
    content["post_processor"] = read_enclosed(metadata, vocabulary).template(num_between=2, second_type=0)
    return content
