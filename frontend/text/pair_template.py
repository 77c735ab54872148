"""The template of a tokenizer for pairs of texts: what stands around them, and which tokens are of type 1."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Tokenizer, models

from quire.proto.messages.media import Media


class Pair(NamedTuple):
    """A pair of texts as one prompt."""

    token_ids: Sequence[int]
    second_text: int = 0
    """Index of the first token of type 1; 0: it has none."""
    media: tuple[Media, ...] = ()
    """Images and videos that stand in it."""


class PairTemplate(NamedTuple):
    """Token ids around the two texts; the library encodes each text by itself and puts these around them, too."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]
    type_1_from: int | None
    """Tokens of the template and of the texts' beginning that are of type 0 behind the first text; None: all are."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "PairTemplate":
        """The template of a tokenizer; of one without any the texts stand side by side."""
        if tokenizer.post_processor is None:
            return cls((), (), (), None)
        # words of a tokenizer that has these two only: no text is needed that every tokenizer knows
        words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        first, second = words.encode_batch(["a", "b"], add_special_tokens=False)
        made = tokenizer.post_processor.process(first, second, True)
        ids, sequences = made.ids, made.sequence_ids
        begin, end = sequences.index(0), sequences.index(1)
        types = made.type_ids
        rises = next((index for index, kind in enumerate(types) if kind), None)
        if rises is not None and (rises <= begin or 0 in types[rises:] or max(types) > 1):
            rises = None  # no model here has such types
        behind_first = None if rises is None else rises - begin - 1
        return cls(tuple(ids[:begin]), tuple(ids[begin + 1 : end]), tuple(ids[end + 1 :]), behind_first)

    @property
    def num_around(self) -> int:
        return len(self.before) + len(self.between) + len(self.behind)

    def join(self, first: Sequence[int], second: Sequence[int], keep: int | None, keep_last: bool) -> Pair:
        """One prompt of two encoded texts, of at most `keep` tokens, which must leave room for the template: the longer
        text gives way first, as with the library's `longest_first`. `keep_last`: the ends of the texts stay."""
        if keep is not None:
            sizes = longest_first(len(first), len(second), keep - self.num_around)
            first, second = (_cut(ids, size, keep_last) for ids, size in zip((first, second), sizes, strict=True))
        ids = array("i", self.before)  # a column: with each of many documents a long first text is copied again
        for part in (first, self.between, second, self.behind):
            ids.extend(part)
        start = 0 if self.type_1_from is None else len(self.before) + len(first) + self.type_1_from
        return Pair(ids, start if start < len(ids) else 0)


def around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The token ids that a tokenizer puts before every text, and behind it."""
    if tokenizer.post_processor is None:
        return [], []
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    made = tokenizer.post_processor.process(words.encode("a", add_special_tokens=False), None, True)
    at = made.sequence_ids.index(0)
    return made.ids[:at], made.ids[at + 1 :]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens that each text keeps of `room`."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


def _cut(ids: Sequence[int], size: int, keep_last: bool) -> Sequence[int]:
    return ids[len(ids) - size :] if keep_last else ids[:size]
