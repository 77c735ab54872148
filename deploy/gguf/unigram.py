"""tokenizer.json of XLM-RoBERTa's Unigram, tokenizer.ggml.model "t5"."""

from typing import Any, Final

from quire.deploy.gguf.byte_bpe import PRE
from quire.deploy.gguf.charsmap import read_charsmap
from quire.deploy.gguf.enclosed import MASK, NAME_ANOTHER, check_kinds, read_enclosed, with_mask
from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.deploy.gguf.sentencepiece import SPACE, read_scores
from quire.deploy.gguf.vocabulary import CONTROL, TOKENS, UNUSED, Vocabulary
from quire.deploy.gguf.wordpiece import UNKNOWN_ID
from quire.worker.weights.parts import ModelError

SPACES: Final = ("tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces")
MASK_TOKEN: Final = "<mask>"
"""The mask of a file that has no text for it: SentencePiece's model does without, the conversion fills its place."""
MOST_BYTES: Final = 1 << 23
"""Most bytes of all tokens together: the trie of them takes a hundred times as many."""


def unigram(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The file's content: what transformers' XLMRobertaTokenizer makes of such a model. Raises ModelError.

    Spaces that end a text are removed, as SentencePiece does it and the metadata says.
    """
    if (name := metadata.text(PRE, "default")) != "default":
        raise ModelError(PRE, f"{name[:64]!r} is not proven equal to the model's own; {NAME_ANOTHER}")
    for key in SPACES:
        if not metadata.flag(key, False):
            raise ModelError(key, f"must be true, as for XLM-RoBERTa; {NAME_ANOTHER}")
    check_kinds(vocabulary)
    pieces, scores = _with_mask_token(metadata, vocabulary, read_scores(metadata, vocabulary))
    unknown = metadata.integer(UNKNOWN_ID, least=0)
    if unknown >= len(pieces.used):
        raise ModelError(UNKNOWN_ID, f"{unknown} is no token, there are {len(pieces.used)}; {REMEDY}")
    if UNUSED in pieces.types[: len(pieces.used)] or sum(len(piece.encode()) for piece in pieces.used) > MOST_BYTES:
        raise ModelError(TOKENS, f"has unused ones among the others, or more than {MOST_BYTES} bytes; {NAME_ANOTHER}")
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0",
        "added_tokens": with_mask(metadata, pieces.added()),
        "normalizer": read_charsmap(metadata),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": read_enclosed(metadata, pieces).template(num_between=2, second_type=0),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": False,
            "vocab": list(zip(pieces.used, scores, strict=False)),
        },
    }


def _with_mask_token(metadata: Metadata, vocabulary: Vocabulary, scores: list[float]) -> tuple[Vocabulary, list[float]]:
    """Tokens and scores with the mask in its place, if that is not used yet."""
    mask = metadata.token(MASK)
    if mask is None or mask >= len(vocabulary.tokens) or vocabulary.types[mask] != UNUSED:
        return vocabulary, scores
    tokens, types, scores = list(vocabulary.tokens), list(vocabulary.types), list(scores)
    if MASK_TOKEN in tokens:
        raise ModelError(TOKENS, f"{MASK_TOKEN!r} is there, and {MASK} names another; {REMEDY}")
    tokens[mask], types[mask], scores[mask] = MASK_TOKEN, CONTROL, 0.0
    return Vocabulary(tuple(tokens), tuple(types)), scores
