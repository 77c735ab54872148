"""The tokenizer of a model: the library `tokenizers` on a tokenizer.json, nothing else.

One rule for special tokens: they are parsed from a template's own text, and from a user's only where the user asks for
it. A rendering in which no user spelled one is encoded by the library as it is, in one piece, so its ids are the
library's by construction; only one in which a user did is put together here.
"""

import json
import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from tokenizers import AddedToken, Tokenizer, normalizers

from quire.frontend.text.detokenizer import Detokenizer, PieceBytes, TokenBytes, text_of
from quire.frontend.text.pair_template import PairTemplate, around
from quire.frontend.text.placeholder_text import PLACEHOLDER, PlaceholderText
from quire.frontend.text.special_token_escape import unescaped
from quire.frontend.text.special_tokens import MAX_ROUNDS, SpecialTokenMatch, SpecialTokens, span, with_model
from quire.frontend.text.tokenizer_settings import end_token, keeps_ends, lowers
from quire.frontend.text.windows import WINDOW, encode_in_windows, packed

BYTE = "<0x"
"""Beginning of the tokens to which a BPE falls back, one for each byte."""


class TokenizerError(ValueError):
    """The model's directory has no tokenizer this server can use."""


class Unshown(NamedTuple):
    """Bytes of tokens that are not in their text."""

    tokens: frozenset[int] = frozenset()
    first_space: bool = False
    """True: a space with which the first token begins."""


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
        if lowers(Path(directory)):
            given = self._tokenizer.normalizer
            self._tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([given] if given else [])])
        self.specials = SpecialTokens(self._tokenizer)
        self.special_ids = frozenset(self.specials.ids.values())
        self._plain = with_model(self._tokenizer.model, self._tokenizer)
        self._with_placeholder = with_model(self._tokenizer.model, self._tokenizer)
        self._with_placeholder.add_tokens([AddedToken(PLACEHOLDER, normalized=False)])
        for one in (self._plain, self._with_placeholder):
            one.encode_special_tokens = True
        self._bares: dict[int, Tokenizer] = {}
        (self._placeholder_id,) = self._ids(self._with_placeholder, PLACEHOLDER)
        own = self._tokenizer.get_vocab(with_added_tokens=False)
        file = _content(path)
        unknown = _unknown_token(file["model"])
        suspects = {content for content in self.specials.ids if content in own and content != unknown}
        self._model_specials = frozenset(map(self.specials.ids.__getitem__, _found_in_text(file["model"], suspects)))
        """Special tokens that the model itself may find in plain text; Unigram does.

        The token for unknown characters is none of them: every text may hold some.
        """
        self.end = self._missing_end(end_token(Path(directory)))
        """The id that a model to embed with wants behind every text, where tokenizer.json puts none; None: no."""
        self.keeps_ends = keeps_ends(Path(directory))
        """A text for a vector that is cut loses its beginning, unless a request says otherwise."""
        self.pairs = PairTemplate.of(self._plain)
        self._num_around = self._plain.num_special_tokens_to_add(False)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.max_token_chars = max(map(len, vocabulary), default=1)
        decoders = _types(file.get("decoder") or {})
        self._table: TokenBytes | PieceBytes
        if decoders == ["ByteLevel"]:
            self._table = TokenBytes.of(vocabulary)
        else:
            self._table = PieceBytes(self._tokenizer, vocabulary if "ByteFallback" in decoders else {})

    def _missing_end(self, token: str | None) -> int | None:
        found = None if token is None else self.token_id(token)
        return None if found in around(self._plain)[1] else found

    @property
    def special_texts(self) -> Sequence[str]:
        return tuple(self.specials.ids)

    @property
    def adds_space(self) -> bool:
        """True where it puts a space before every text."""
        return b"".join(map(self.token_bytes, self.encode("x", add_special_tokens=False))).startswith(b" ")

    def token_id(self, content: str) -> int | None:
        """The id of a token by its text in the tokenizer's file; None where there is none."""
        found: int | None = self._tokenizer.token_to_id(content)
        return found

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """As `column`, as a list, which takes ten times as much memory."""
        return self.column(text, add_special_tokens, parse_special).tolist()

    def column(self, text: str, add_special_tokens: bool = True, parse_special: bool = False) -> "array[int]":
        """Ids of a text. Special tokens spelled in it stay text, or are parsed; the post-processor adds its own."""
        if parse_special:
            return self._ids(self._tokenizer, text, add_special_tokens)
        ids = self._ids(self._plain, text, add_special_tokens)
        if self._num_model_specials(ids) > (self._num_around if add_special_tokens else 0):
            return self._encode_with_placeholders(text, (), add_special_tokens)
        return ids

    def encode_template(self, rendered: str, originals: Mapping[int, str]) -> list[int]:
        """As `template_column`, as a list."""
        return self.template_column(rendered, originals).tolist()

    def template_column(self, rendered: str, originals: Mapping[int, str]) -> "array[int]":
        """Ids of a rendered template. Special tokens spelled in it are parsed; escaped ones are not.

        `originals` maps escape characters to what they stand for (see `special_token_escape`). Raises `ParameterError`.
        """
        plain = unescaped(rendered, originals)
        may_hold_user_special = plain is not rendered or self.specials.have_variants
        if may_hold_user_special and not self.specials.are_all_from_template(rendered, plain):
            return self._encode_with_placeholders(plain, self.specials.find_from_template(rendered))
        ids = self._ids(self._tokenizer, plain)
        num_model_specials = self._num_model_specials(ids)
        made_by_model = num_model_specials and num_model_specials > self._num_model_specials(
            self.specials.tokens(plain)
        )
        if made_by_model and self._has_user_special(rendered, plain):
            return self._encode_with_placeholders(plain, self.specials.find(plain))
        return ids

    def surrounded(self, ids: "array[int]") -> "array[int]":
        """The ids between those that the post-processor puts around every text, where they do not have them yet."""
        before, behind = (array("i", ids) for ids in around(self._plain))
        before = before[:0] if ids[: len(before)] == before else before
        return before + ids + (behind[:0] if behind and ids[-len(behind) :] == behind else behind)

    def _has_user_special(self, rendered: str, plain: str) -> bool:
        """True where the model found a special token in a user's text."""
        encoding = self._tokenizer.encode_batch([plain], add_special_tokens=False)[0]
        for index in self._model_special_positions(encoding.ids):
            start, stop = span(encoding, index)
            if not any(content in rendered[start:stop] for content in self.specials.ids):
                return True
        return False

    def _encode_with_placeholders(
        self, text: str, specials: Iterable[SpecialTokenMatch], add_special_tokens: bool = False
    ) -> "array[int]":
        """Ids of a text in which these special tokens are parsed and no others."""
        with_placeholders = PlaceholderText(text, specials, self._ids(self._plain, PLACEHOLDER))
        encoded = self._ids(self._with_placeholder, with_placeholders.text, add_special_tokens)
        for cut in (_once, *[_everywhere] * (MAX_ROUNDS - 1)):
            if self._num_model_specials(encoded) <= (self._num_around if add_special_tokens else 0):
                break
            encoding = self._with_placeholder.encode_batch([with_placeholders.text], add_special_tokens=False)[0]
            positions = self._model_special_positions(encoding.ids)
            with_placeholders.separate(position for index in positions for position in cut(*span(encoding, index)))
            encoded = self._ids(self._with_placeholder, with_placeholders.text, add_special_tokens)
        return with_placeholders.ids(np.frombuffer(encoded, np.int32), self._placeholder_id)

    def _ids(self, tokenizer: Tokenizer, text: str, add_special_tokens: bool = False) -> "array[int]":
        if len(text) > WINDOW:
            before, behind = around(tokenizer) if add_special_tokens else ([], [])
            if (ids := encode_in_windows(self._bare(tokenizer), text, before)) is not None:
                ids.extend(behind)
                return ids
        # the library's `encode` keeps the interpreter lock: a text of megabytes would silence the process for seconds
        return packed(tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def _bare(self, tokenizer: Tokenizer) -> Tokenizer:
        """The same tokenizer without a post-processor, whose tokens know all of their characters."""
        if (found := self._bares.get(id(tokenizer))) is None:
            found = with_model(tokenizer.model, tokenizer)
            found.post_processor = None
            found.encode_special_tokens = tokenizer.encode_special_tokens
            self._bares[id(tokenizer)] = found
        return found

    def _model_special_positions(self, ids: Sequence[int]) -> list[int]:
        where: list[int] = np.flatnonzero(
            np.isin(np.frombuffer(packed(ids), np.int32), list(self._model_specials))
        ).tolist()
        return where

    def _num_model_specials(self, ids: Sequence[int]) -> int:
        return len(self._model_special_positions(ids)) if self._model_specials else 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        # like `encode`: the library's `decode` keeps the interpreter lock
        return self._tokenizer.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token within a text, perhaps a part of a character; special tokens show."""
        return self._table.shown(token_id)

    def token_text(self, token_id: int) -> str:
        """The text of one token: U+FFFD where its bytes form no character."""
        return text_of(self.token_bytes(token_id))

    def detokenizer(self, skip_special_tokens: bool, shown: Collection[str] = ()) -> Detokenizer:
        """A new incremental decoder for one output. Special tokens of `shown` are never skipped."""
        hidden = self._hidden(frozenset(shown)) if skip_special_tokens else frozenset[int]()
        return self._table.detokenizer(hidden)

    def unshown(self, skip_special_tokens: bool) -> Unshown:
        """Bytes of tokens that a text does not show."""
        drops = self.adds_space and not self.decode(self.encode("x", add_special_tokens=False)).startswith(" ")
        return Unshown(self.special_ids if skip_special_tokens else frozenset(), drops)

    def _hidden(self, shown: frozenset[str]) -> frozenset[int]:
        if not shown.isdisjoint(self.specials.ids):
            return frozenset(token for text, token in self.specials.ids.items() if text not in shown)
        return self.special_ids


class TokenTexts(Sequence[str]):
    """The texts of many tokens, each made as it is taken: a million short texts would take 60 MB."""

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
    """The one cut that is enough for a special token that overlaps no other."""
    return (start + 1,)


def _everywhere(start: int, stop: int) -> Iterable[int]:
    """Cuts between all characters: nothing is left that another special token could begin or end in.

    BPE and Unigram cut the rest as before: these are the second and last cuts. WordPiece reads it as a new word.
    """
    return range(start, stop + 1)


def _content(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content


def _unknown_token(model: dict[str, Any]) -> str | None:
    """The token of a model for unknown characters. Unigram gives its position in the vocabulary."""
    if model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _found_in_text(model: dict[str, Any], tokens: set[str]) -> set[str]:
    """The tokens that a model may find in plain text: all of them, but of a BPE only what its merges make."""
    changes_parts = any(map(model.get, ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")))
    if model.get("type") != "BPE" or changes_parts or not tokens:
        return tokens
    merges: Iterable[str | list[str]] = model["merges"]
    made = {merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge) for merge in merges}
    return {token for token in tokens if token in made or len(token) == 1 or token.startswith(BYTE)}


def _types(decoder: dict[str, Any]) -> list[str]:
    """The types of a decoder's parts, in order."""
    if "decoders" in decoder:
        return [kind for one in decoder["decoders"] for kind in _types(one)]
    return [str(decoder.get("type"))]
