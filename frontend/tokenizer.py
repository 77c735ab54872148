"""Text to token ids: the library `tokenizers` on a tokenizer.json, nothing else.

One rule for special tokens: they are parsed only from a template's own text. The tokenizer itself treats every text
as plain (`encode_special_tokens`); `encode_template` cuts the template's special tokens out first.
"""

import json
import os
import re
from array import array
from collections.abc import Collection, Mapping, Sequence

from tokenizers import Tokenizer

from quire.frontend.detokenizer import Detokenizer, TokenBytes, WindowDetokenizer

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
        self._tokenizer.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self._specials = {entry.content: (token, entry) for token, entry in added.items() if entry.special}
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.max_token_chars = max(map(len, vocabulary), default=1)
        self._table = TokenBytes.of(vocabulary) if _is_byte_level(path) else None

    @property
    def special_texts(self) -> Sequence[str]:
        return tuple(self._specials)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of plain text: special tokens spelled in it stay text. BOS and the like come from the post-processor."""
        # the library's `encode` keeps the interpreter lock: a text of megabytes would silence the process for seconds
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def encode_template(self, rendered: str, disguises: Mapping[int, str]) -> list[int]:
        """Ids of a rendered template. Special tokens spelled in it are parsed; what is disguised is not.

        `disguises` maps stand-in characters (see `chat.Disguise`) to what they stand for, as `str.translate` takes it.
        """
        pieces: list[str] = []
        between: list[int] = []
        start, strip_left = 0, False
        for match in self._special_pattern.finditer(rendered):
            token, entry = self._specials[match.group()]
            piece = rendered[start : match.start()]
            piece = piece.lstrip() if strip_left else piece
            pieces.append((piece.rstrip() if entry.lstrip else piece).translate(disguises))
            between.append(token)
            start, strip_left = match.end(), entry.rstrip
        last = rendered[start:]
        pieces.append((last.lstrip() if strip_left else last).translate(disguises))
        ids: list[int] = []
        encoded = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        for index, (piece, one) in enumerate(zip(pieces, encoded, strict=True)):
            ids += one.ids if piece else ()
            ids += between[index : index + 1]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """What one token stands for, alone; special tokens show."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    def detokenizer(self, skip_special_tokens: bool, shown: Collection[str] = ()) -> Detokenizer:
        """A new incremental decoder for one output. Special tokens of `shown` are never skipped."""
        hidden = self._hidden(frozenset(shown)) if skip_special_tokens else frozenset[int]()
        if self._table is not None:
            return self._table.detokenizer(hidden)
        return WindowDetokenizer(self._tokenizer, hidden)

    def _hidden(self, shown: frozenset[str]) -> frozenset[int]:
        if not shown.isdisjoint(self._specials):
            return frozenset(token for text, (token, _) in self._specials.items() if text not in shown)
        return self.special_ids


def packed(ids: Sequence[int]) -> "array[int]":
    """The same ids as int32, piece by piece: between two of them the event loop may take the interpreter lock."""
    column = array("i")
    for start in range(0, len(ids), PIECE):
        column.extend(ids[start : start + PIECE])
    return column


def _is_byte_level(path: str) -> bool:
    with open(path, encoding="utf-8") as file:
        decoder = json.load(file).get("decoder")
    return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
