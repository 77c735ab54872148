"""The special tokens of a tokenizer: where a text holds some, as the library finds them, and which a template wrote."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

from tokenizers import Encoding, Tokenizer, models

from quire.frontend.text.special_token_escape import STAND_INS, longest_of
from quire.proto.messages.params import ParameterError

MAX_ROUNDS = 8
"""Each breaks what is spelled otherwise than in the tokenizer's file; the next one looks for what that set free."""
PIECE = 64 << 10
EDGE = 1024
"""Characters at both ends of a piece, whose special tokens the whole text may see otherwise."""
_TEXT = "text"
_STAND_IN = re.compile(f"[{STAND_INS[0]}-{STAND_INS[-1]}]")


class Found(NamedTuple):
    """In characters; the space that a token takes with it (`lstrip`, `rstrip`) belongs to it."""

    start: int
    stop: int
    content: str
    token: int

    def is_in(self, rendered: str) -> bool:
        """Whether it stands there as the tokenizer's file spells it; one that was disguised does not."""
        return self.content in rendered[self.start : self.stop]


class SpecialTokens:
    """The library says where they are: flags, normalizer and overlaps count as they do when it encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.ids = {entry.content: token for token, entry in added.items() if entry.special}
        self.have_variants = tokenizer.normalizer is not None and any(
            entry.special and entry.normalized for entry in added.values()
        )
        """Some are looked for in normalized text: a text may spell them otherwise than the tokenizer's file."""
        self._spelling = re.compile(longest_of(self.ids) or r"(?!)")
        self._longest = max(map(len, self.ids), default=0)
        # every stretch between added tokens is one word to it: nothing is tokenized
        self._finder = over_model(models.WordLevel({_TEXT: 0}, unk_token=_TEXT), tokenizer)
        self._finder.pre_tokenizer = None
        entries = self._finder.get_added_tokens_decoder()
        self._contents = {token: entry.content for token, entry in entries.items() if entry.special}

    def find(self, text: str) -> Iterator[Found]:
        """All of a text, from left to right."""
        encoding = self._finder.encode_batch([text], add_special_tokens=False)[0]
        for index, token in enumerate(encoding.ids):
            content = self._contents.get(token)
            if content is not None:
                yield Found(*span(encoding, index), content, self.ids[content])

    def tokens(self, text: str) -> list[int]:
        """All of a text, without their places: at a small part of the cost."""
        encoding = self._finder.encode_batch_fast([text], add_special_tokens=False)[0]
        return [self.ids[content] for token in encoding.ids if (content := self._contents.get(token)) is not None]

    def are_templates(self, rendered: str, plain: str) -> bool:
        """Whether a template wrote all of `plain`, which is `rendered` without the disguise of what users wrote.

        Where none is spelled over a stand-in, no look is needed. Otherwise only a look at the whole text can tell; a
        look at pieces finds users' before millions of them are listed.
        """
        if not self.have_variants and not self._is_over_stand_in(rendered, plain):
            return True
        for start in range(0, len(plain) - PIECE, PIECE):
            end = start + PIECE + 2 * EDGE
            seen = rendered[start:end]
            for one in self.find(plain[start:end]):
                if one.start >= EDGE and one.stop <= PIECE + EDGE and not one.is_in(seen):
                    return False
        return all(one.is_in(rendered) for one in self.find(plain))

    def _is_over_stand_in(self, rendered: str, plain: str) -> bool:
        for at in _stand_ins(rendered):
            if rendered[at] == plain[at]:  # a user's own noncharacter
                continue
            for start in range(max(0, at - self._longest + 1), at + 1):
                spelled = self._spelling.match(plain, start)
                if spelled is not None and spelled.end() > at:
                    return True
        return False

    def of_template(self, rendered: str) -> list[Found]:
        """Those a template wrote; users' are disguised. Raises `ParameterError` for too many other spellings."""
        for _ in range(MAX_ROUNDS):
            found = list(self.find(rendered))
            foreign = [one for one in found if not one.is_in(rendered)]
            if not foreign:
                return found
            rendered = _broken(rendered, foreign)
        raise ParameterError("chat.messages", "spell special tokens in too many ways; remove them")


def _stand_ins(text: str) -> Iterator[int]:
    """Where they are; one search looks at no more than a piece."""
    for start in range(0, len(text), PIECE):
        end = start + PIECE
        while (match := _STAND_IN.search(text, start, end)) is not None:
            yield match.start()
            start = match.end()


def span(encoding: Encoding, index: int) -> tuple[int, int]:
    """Where a token of the text begins and ends, in characters."""
    return cast("tuple[int, int]", encoding.token_to_chars(index))


def over_model(model: models.Model, tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer around another model, or, sharing it, around the same. It treats special tokens by its own switch."""
    made = Tokenizer(model)
    made.normalizer, made.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    made.post_processor, made.decoder = tokenizer.post_processor, tokenizer.decoder
    made.add_tokens([entry for _, entry in sorted(tokenizer.get_added_tokens_decoder().items())])
    return made


def _broken(text: str, found: Iterable[Found]) -> str:
    """The text, as long as before, with a noncharacter in each of what was found."""
    pieces: list[str] = []
    start = 0
    for one in found:
        spelled = text[one.start : one.stop]
        at = next((i for i, char in enumerate(spelled) if char not in STAND_INS and not char.isspace()), None)
        hidden = STAND_INS[0] * len(spelled) if at is None else spelled[:at] + STAND_INS[0] + spelled[at + 1 :]
        pieces += (text[start : one.start], hidden)
        start = one.stop
    return "".join((*pieces, text[start:]))
