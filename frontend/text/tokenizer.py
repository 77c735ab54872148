"""Text to token ids: the library `tokenizers` on a tokenizer.json, nothing else.

One rule for special tokens: they are parsed from a template's own text, and from a user's only where the user asks for
it. A rendering in which no user spelled one is encoded by the library as it is, in one piece, so its ids are the
library's by construction; only one in which a user did is put together here.
"""

import json
import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from tokenizers import AddedToken, Tokenizer

from quire.frontend.text.detokenizer import Detokenizer, PieceBytes, TokenBytes, text_of
from quire.frontend.text.placeholder_text import PLACEHOLDER, PlaceholderText
from quire.frontend.text.special_token_escape import restored
from quire.frontend.text.special_tokens import MAX_ROUNDS, Found, SpecialTokens, over_model, span

PIECE = 4096


class TokenizerError(ValueError):
    """The model's directory has no tokenizer this server can use."""


class TextTokenizer:
    """Encodes and decodes. Encoding releases the interpreter lock, so in a thread pool it stops nobody."""

    def __init__(self, directory: str) -> None:
        """Raises `TokenizerError` naming the file and the remedy."""
        path = os.path.join(directory, "tokenizer.json")
        if not os.path.isfile(path):
            raise TokenizerError(
                f"tokenizer: {path}: no such file; only tokenizer.json is read. Convert the tokenizer once with "
                "`AutoTokenizer.from_pretrained(...).save_pretrained(...)` or name a directory with one"
            )
        try:
            self._tokenizer = Tokenizer.from_file(path)
        except Exception as error:  # the library raises bare Exception for a bad file
            raise TokenizerError(f"tokenizer: {path}: not a tokenizer this build reads: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.specials = SpecialTokens(self._tokenizer)
        self.special_ids = frozenset(self.specials.ids.values())
        self._plain = over_model(self._tokenizer.model, self._tokenizer)
        self._anchored = over_model(self._tokenizer.model, self._tokenizer)
        self._anchored.add_tokens([AddedToken(PLACEHOLDER, normalized=False)])
        for one in (self._plain, self._anchored):
            one.encode_special_tokens = True
        (self._anchor,) = _ids(self._anchored, PLACEHOLDER, add_special_tokens=False)
        own = self._tokenizer.get_vocab(with_added_tokens=False)
        file = _content(path)
        unknown = _unknown_token(file["model"])
        self._shadowed = frozenset(
            token for content, token in self.specials.ids.items() if content in own and content != unknown
        )
        """Special tokens that the model may find in plain text by itself; Unigram does. What it says for characters it
        does not know is none of them: every text may hold some.
        """
        self._num_around = self._plain.num_special_tokens_to_add(False)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.max_token_chars = max(map(len, vocabulary), default=1)
        decoders = _types(file.get("decoder") or {})
        self._table: TokenBytes | PieceBytes
        if decoders == ["ByteLevel"]:
            self._table = TokenBytes.of(vocabulary)
        else:
            self._table = PieceBytes(self._tokenizer, vocabulary if "ByteFallback" in decoders else {})

    @property
    def special_texts(self) -> Sequence[str]:
        return tuple(self.specials.ids)

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of a text. Special tokens spelled in it stay text, or are parsed; the post-processor adds its own."""
        if parse_special:
            return _ids(self._tokenizer, text, add_special_tokens)
        ids = _ids(self._plain, text, add_special_tokens)
        if self._num_shadowed(ids) > (self._num_around if add_special_tokens else 0):
            return self._encode_around(text, (), add_special_tokens)
        return ids

    def encode_template(self, rendered: str, disguises: Mapping[int, str]) -> list[int]:
        """Ids of a rendered template. Special tokens spelled in it are parsed; what is disguised is not.

        `disguises` maps stand-in characters (see `chat.Disguise`) to what they stand for. Raises `ParameterError`.
        """
        plain = restored(rendered, disguises)
        may_be_foreign = plain is not rendered or self.specials.have_variants
        if may_be_foreign and not self.specials.are_templates(rendered, plain):
            return self._encode_around(plain, self.specials.of_template(rendered))
        ids = _ids(self._tokenizer, plain, add_special_tokens=False)
        num_shadowed = self._num_shadowed(ids)
        made_by_model = num_shadowed and num_shadowed > self._num_shadowed(self.specials.tokens(plain))
        if made_by_model and self._is_foreign(rendered, plain):
            return self._encode_around(plain, self.specials.find(plain))
        return ids

    def _is_foreign(self, rendered: str, plain: str) -> bool:
        """Whether the model found a special token in what a user wrote."""
        encoding = self._tokenizer.encode_batch([plain], add_special_tokens=False)[0]
        for index in self._where_shadowed(encoding.ids):
            start, stop = span(encoding, index)
            if not any(content in rendered[start:stop] for content in self.specials.ids):
                return True
        return False

    def _encode_around(self, text: str, specials: Iterable[Found], add_special_tokens: bool = False) -> list[int]:
        """Ids of a text in which these special tokens are parsed and no others."""
        anchored = PlaceholderText(text, specials, _ids(self._plain, PLACEHOLDER, add_special_tokens=False))
        encoded = _ids(self._anchored, anchored.text, add_special_tokens)
        for cut in (_once, *[_everywhere] * (MAX_ROUNDS - 1)):
            if self._num_shadowed(encoded) <= (self._num_around if add_special_tokens else 0):
                break
            encoding = self._anchored.encode_batch([anchored.text], add_special_tokens=False)[0]
            shadowed = self._where_shadowed(encoding.ids)
            anchored.separate(position for index in shadowed for position in cut(*span(encoding, index)))
            encoded = _ids(self._anchored, anchored.text, add_special_tokens)
        return anchored.ids(np.frombuffer(packed(encoded), np.int32), self._anchor)

    def _where_shadowed(self, ids: Sequence[int]) -> list[int]:
        where: list[int] = np.flatnonzero(np.isin(np.frombuffer(packed(ids), np.int32), list(self._shadowed))).tolist()
        return where

    def _num_shadowed(self, ids: Sequence[int]) -> int:
        return len(self._where_shadowed(ids)) if self._shadowed else 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        # like `encode`: the library's `decode` keeps the interpreter lock
        return self._tokenizer.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for in a text that goes on, perhaps a part of a character; special tokens show."""
        return self._table.shown(token_id)

    def token_text(self, token_id: int) -> str:
        """The same as text: U+FFFD where the bytes form no character."""
        return text_of(self.token_bytes(token_id))

    def detokenizer(self, skip_special_tokens: bool, shown: Collection[str] = ()) -> Detokenizer:
        """A new incremental decoder for one output. Special tokens of `shown` are never skipped."""
        hidden = self._hidden(frozenset(shown)) if skip_special_tokens else frozenset[int]()
        return self._table.detokenizer(hidden)

    def _hidden(self, shown: frozenset[str]) -> frozenset[int]:
        if not shown.isdisjoint(self.specials.ids):
            return frozenset(token for text, token in self.specials.ids.items() if text not in shown)
        return self.special_ids


class TokenTexts(Sequence[str]):
    """What each of many tokens stands for, made as it is taken: a million short texts would take 60 MB."""

    def __init__(self, ids: Sequence[int], tokenizer: TextTokenizer) -> None:
        self._ids = ids
        self._text = tokenizer.token_text

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return map(self._text, self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._text(token) for token in self._ids[index]]
        return self._text(self._ids[index])


def _once(start: int, stop: int) -> Iterable[int]:
    """One cut is enough for a special token that overlaps no other: its text stays as whole as it can."""
    return (start + 1,)


def _everywhere(start: int, stop: int) -> Iterable[int]:
    """Of what the first cuts set free nothing is left that another special token could begin or end in.

    BPE and Unigram cut the rest as before: these are the second and last cuts. WordPiece reads it as a new word.
    """
    return range(start, stop + 1)


def packed(ids: Sequence[int]) -> "array[int]":
    """The same ids as int32, piece by piece: between two of them the event loop may take the interpreter lock."""
    column = array("i")
    for start in range(0, len(ids), PIECE):
        column.extend(ids[start : start + PIECE])
    return column


def _ids(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    # the library's `encode` keeps the interpreter lock: a text of megabytes would silence the process for seconds
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
    return ids


def _content(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content


def _unknown_token(model: dict[str, Any]) -> str | None:
    """What a model of tokenizer.json says for what it does not know. Unigram names a place in its vocabulary."""
    if model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _types(decoder: dict[str, Any]) -> list[str]:
    """Of decoders, in order."""
    if "decoders" in decoder:
        return [kind for one in decoder["decoders"] for kind in _types(one)]
    return [str(decoder.get("type"))]
