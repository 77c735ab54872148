"""Small tokenizers of every family that serves chats: how the library cuts, normalizes and pre-tokenizes a text."""

from collections.abc import Callable, Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Metaspace

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
MERGED = ["<s>", "he", "in", "en", "er", "st", "us", "as", "an", "end", "user", "the"]


def merges(space: str) -> list[tuple[str, str]]:
    """Of short words, with and without a space before them, and of spaces."""
    pairs = {}
    for word in MERGED:
        for start in range(1, len(word)):
            pairs[word[:start], word[start]] = None
        pairs[space, word[0]] = None
        for start in range(1, len(word)):
            pairs[space + word[:start], word[start]] = None
    return [*pairs, (space, space), ("<", "|"), ("|", ">"), ("<", "s"), ("/", "s")]


def sentencepiece() -> models.BPE:
    """Bytes to fall back on; spaces are U+2581."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(0x21, 0x7F)), "é", "한"]
    pieces += [first + second for first, second in merges("▁")]
    vocabulary = {piece: token for token, piece in enumerate(dict.fromkeys(pieces))}
    return models.BPE(vocabulary, merges("▁"), byte_fallback=True, fuse_unk=True, unk_token="<unk>")


def byte_level() -> models.BPE:
    pieces = [*sorted(ByteLevel.alphabet()), *(first + second for first, second in merges("Ġ"))]
    return models.BPE({piece: token for token, piece in enumerate(dict.fromkeys(pieces))}, merges("Ġ"))


def wordpiece() -> models.WordPiece:
    letters = [*map(chr, range(0x21, 0x7F)), "é"]
    pieces = ["[UNK]", *letters, *(f"##{letter}" for letter in letters), *MERGED]
    return models.WordPiece({piece: token for token, piece in enumerate(dict.fromkeys(pieces))}, unk_token="[UNK]")


def unigram() -> models.Unigram:
    letters = ["</s>", "<|end|>", "▁", *map(chr, range(0x21, 0x7F)), *MERGED, *(f"▁{word}" for word in MERGED)]
    return models.Unigram([("<unk>", 0.0), *((piece, -1.0 - len(piece) / 8) for piece in letters)], 0)


def _fallback() -> decoders.Decoder:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def _metaspace(scheme: str, split: bool) -> Callable[[], Tokenizer]:
    def made() -> Tokenizer:
        return _tokenizer(sentencepiece(), Metaspace("▁", scheme, split), _fallback())

    return made


def _byte_level(**flags: bool) -> Callable[[], Tokenizer]:
    return lambda: _tokenizer(byte_level(), ByteLevel(**flags), decoders.ByteLevel())


def _legacy() -> Tokenizer:
    """As Llama 2 and Mistral 7B were converted first."""
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    decoder = decoders.Sequence([_fallback(), decoders.Strip(" ", 1, 0)])
    return _tokenizer(sentencepiece(), None, decoder, prepend)


def _llama3() -> Tokenizer:
    cuts = [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    return _tokenizer(byte_level(), pre_tokenizers.Sequence(cuts), decoders.ByteLevel(), normalizers.NFC())


def _digits() -> Tokenizer:
    cuts = [pre_tokenizers.Digits(True), Metaspace("▁", "first", False)]
    return _tokenizer(sentencepiece(), pre_tokenizers.Sequence(cuts), _fallback())


def _bert() -> Tokenizer:
    words = pre_tokenizers.BertPreTokenizer()
    return _tokenizer(wordpiece(), words, decoders.WordPiece(), normalizers.BertNormalizer(lowercase=True))


def _lower() -> Tokenizer:
    lower = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return _tokenizer(byte_level(), ByteLevel(add_prefix_space=False), decoders.ByteLevel(), lower)


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    **{
        f"metaspace-{scheme}{'' if split else '-whole'}": _metaspace(scheme, split)
        for scheme in ("always", "first", "never")
        for split in (True, False)
    },
    "legacy": _legacy,
    "digits-first": _digits,
    "unigram": lambda: _tokenizer(unigram(), Metaspace("▁", "first"), decoders.Metaspace()),
    "byte-level": _byte_level(add_prefix_space=False),
    "byte-level-prefix": _byte_level(add_prefix_space=True),
    "byte-level-whole": _byte_level(add_prefix_space=False, use_regex=False),
    "llama3": _llama3,
    "lower": _lower,
    "bert": _bert,
    "whitespace": lambda: _tokenizer(wordpiece(), pre_tokenizers.Whitespace(), decoders.WordPiece()),
}


def _tokenizer(
    model: models.Model,
    cut: pre_tokenizers.PreTokenizer | None,
    decoder: decoders.Decoder,
    normalizer: normalizers.Normalizer | None = None,
) -> Tokenizer:
    made = Tokenizer(model)
    made.normalizer, made.pre_tokenizer, made.decoder = normalizer, cut, decoder
    return made


def with_tokens(family: str, added: Iterable[AddedToken]) -> Tokenizer:
    """A new tokenizer of a family with tokens of its own."""
    made = FAMILIES[family]()
    made.add_tokens(list(added))
    return made
