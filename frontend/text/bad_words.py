"""Bad words as the token sequences with which a model would write them."""

from collections.abc import Iterator, Sequence

from quire.frontend.errors import too_many_entries
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.messages.params import MAX_BAD_WORDS, MAX_STOP_LENGTH, ParameterError

CONTEXTS = ("1", "a", "\n", ".")
"""Texts before a word, of which the first one is taken that the tokenizer does not join with it."""


def bad_word_tokens(words: Sequence[str], tokenizer: TextTokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences of each word after other text and after a space; white space alone as it is.

    Raises `ParameterError`.
    """
    if len(words) > MAX_BAD_WORDS:
        raise too_many_entries("bad_words", len(words), MAX_BAD_WORDS)
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        if not 1 <= len(word) <= MAX_STOP_LENGTH:
            raise ParameterError("bad_words", f"entry {index} must be 1 to {MAX_STOP_LENGTH} characters")
        for tokens in _spellings(word, tokenizer):
            if not tokens:
                raise ParameterError("bad_words", f"entry {index} is no token of this model's; remove it")
            sequences[tokens] = None
    if len(sequences) > MAX_BAD_WORDS:
        raise ParameterError(
            "bad_words",
            f"{len(words)} words are {len(sequences)} token sequences, behind other text and behind a space; "
            f"at most {MAX_BAD_WORDS} are allowed, use fewer words",
        )
    return tuple(sequences)


def _spellings(word: str, tokenizer: TextTokenizer) -> Iterator[tuple[int, ...]]:
    bare = word.lstrip(" ")
    if not bare.strip():
        yield _behind_text(word, tokenizer)
        return
    yield _behind_text(bare, tokenizer)
    yield _behind_text(f" {bare}", tokenizer)


def _behind_text(text: str, tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The tokens of a word within a text: at a text's beginning a tokenizer may add a space."""
    for context in CONTEXTS:
        before = tokenizer.encode(context, add_special_tokens=False)
        whole = tokenizer.encode(context + text, add_special_tokens=False)
        if len(whole) > len(before) and whole[: len(before)] == before:
            return tuple(whole[len(before) :])
    return tuple(tokenizer.encode(text, add_special_tokens=False))
