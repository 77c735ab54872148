"""The search for special tokens in a text, as the library finds them, and for those that a template wrote."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

from tokenizers import Encoding, Tokenizer, models

from quire.frontend.text.special_token_escape import ESCAPE_CHARS, longest_match_pattern
from quire.proto.messages.params import ParameterError

MAX_ROUNDS = 8
"""Most rounds of a search: each escapes what is spelled otherwise than in the tokenizer's file, which may free more."""
PIECE = 64 << 10
EDGE = 1024
"""Characters at both ends of a piece whose special tokens may be others in the whole text."""
_TEXT = "text"
_ESCAPE_CHAR = re.compile(f"[{ESCAPE_CHARS[0]}-{ESCAPE_CHARS[-1]}]")


class SpecialTokenMatch(NamedTuple):
    """A special token in a text, in characters; space that it takes with it (`lstrip`, `rstrip`) belongs to it."""

    start: int
    stop: int
    content: str
    token: int

    def is_unescaped_in(self, rendered: str) -> bool:
        """True where it is spelled as in the tokenizer's file; an escaped one is not."""
        return self.content in rendered[self.start : self.stop]


class SpecialTokens:
    """The special tokens of a tokenizer. The library finds them, so flags, normalizer and overlaps count as ever."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.ids = {entry.content: token for token, entry in added.items() if entry.special}
        self.have_variants = tokenizer.normalizer is not None and any(
            entry.special and entry.normalized for entry in added.values()
        )
        """True where some are looked for in normalized text: it may spell them otherwise than the file."""
        self._spelling = re.compile(longest_match_pattern(self.ids) or r"(?!)")
        self._longest = max(map(len, self.ids), default=0)
        # every stretch between added tokens is one word to it: nothing is tokenized
        self._finder = with_model(models.WordLevel({_TEXT: 0}, unk_token=_TEXT), tokenizer)
        self._finder.pre_tokenizer = None
        entries = self._finder.get_added_tokens_decoder()
        self._contents = {token: entry.content for token, entry in entries.items() if entry.special}

    def find(self, text: str) -> Iterator[SpecialTokenMatch]:
        """All special tokens of a text, from left to right."""
        encoding = self._finder.encode_batch([text], add_special_tokens=False)[0]
        for index, token in enumerate(encoding.ids):
            content = self._contents.get(token)
            if content is not None:
                yield SpecialTokenMatch(*span(encoding, index), content, self.ids[content])

    def tokens(self, text: str) -> list[int]:
        """The ids of all special tokens of a text, at a small part of the cost of `find`."""
        encoding = self._finder.encode_batch_fast([text], add_special_tokens=False)[0]
        return [self.ids[content] for token in encoding.ids if (content := self._contents.get(token)) is not None]

    def are_all_from_template(self, rendered: str, plain: str) -> bool:
        """True where a template wrote all special tokens of `plain`, which is `rendered` unescaped.

        Where none is spelled over an escape character, no search is needed. Otherwise only a search of the whole text
        can tell; a search of pieces finds users' before millions of them are listed.
        """
        if not self.have_variants and not self._is_over_escape_char(rendered, plain):
            return True
        for start in range(0, len(plain) - PIECE, PIECE):
            end = start + PIECE + 2 * EDGE
            seen = rendered[start:end]
            for one in self.find(plain[start:end]):
                if one.start >= EDGE and one.stop <= PIECE + EDGE and not one.is_unescaped_in(seen):
                    return False
        return all(one.is_unescaped_in(rendered) for one in self.find(plain))

    def _is_over_escape_char(self, rendered: str, plain: str) -> bool:
        for at in _escape_positions(rendered):
            if rendered[at] == plain[at]:  # a user's own noncharacter
                continue
            for start in range(max(0, at - self._longest + 1), at + 1):
                spelled = self._spelling.match(plain, start)
                if spelled is not None and spelled.end() > at:
                    return True
        return False

    def find_from_template(self, rendered: str) -> list[SpecialTokenMatch]:
        """The special tokens that a template wrote. Raises `ParameterError` for too many other spellings."""
        for _ in range(MAX_ROUNDS):
            found = list(self.find(rendered))
            from_users = [one for one in found if not one.is_unescaped_in(rendered)]
            if not from_users:
                return found
            rendered = _escaped(rendered, from_users)
        raise ParameterError("chat.messages", "spell special tokens in too many ways; remove them")


def _escape_positions(text: str) -> Iterator[int]:
    """The positions of escape characters. One search looks at no more than a piece."""
    for start in range(0, len(text), PIECE):
        end = start + PIECE
        while (match := _ESCAPE_CHAR.search(text, start, end)) is not None:
            yield match.start()
            start = match.end()


def span(encoding: Encoding, index: int) -> tuple[int, int]:
    """The beginning and the end of a token in the text, in characters."""
    return cast("tuple[int, int]", encoding.token_to_chars(index))


def with_model(model: models.Model, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with another model, or sharing the same one; its switch `encode_special_tokens` is its own."""
    made = Tokenizer(model)
    made.normalizer, made.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    made.post_processor, made.decoder = tokenizer.post_processor, tokenizer.decoder
    made.add_tokens([entry for _, entry in sorted(tokenizer.get_added_tokens_decoder().items())])
    return made


def _escaped(text: str, found: Iterable[SpecialTokenMatch]) -> str:
    """The text with an escape character in each match; its length is the same."""
    pieces: list[str] = []
    start = 0
    for one in found:
        spelled = text[one.start : one.stop]
        at = next((i for i, char in enumerate(spelled) if char not in ESCAPE_CHARS and not char.isspace()), None)
        broken = ESCAPE_CHARS[0] * len(spelled) if at is None else spelled[:at] + ESCAPE_CHARS[0] + spelled[at + 1 :]
        pieces += (text[start : one.start], broken)
        start = one.stop
    return "".join((*pieces, text[start:]))
