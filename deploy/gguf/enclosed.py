"""Parts that the tokenizers of encoders share: two special tokens around a text, and the kinds of their tokens."""

from dataclasses import dataclass
from typing import Any, Final

from quire.deploy.gguf.config import BEGIN, ENDS
from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.deploy.gguf.vocabulary import CONTROL, NORMAL, TOKENS, TYPES, UNKNOWN, UNUSED, Vocabulary
from quire.worker.weights.parts import ModelError

CLS: Final = "tokenizer.ggml.cls_token_id"
SEP: Final = "tokenizer.ggml.seperator_token_id"  # the format spells it so
MASK: Final = "tokenizer.ggml.mask_token_id"
ADDED: Final = ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token")
NAME_ANOTHER: Final = "name the directory of the model's tokenizer.json with --tokenizer"


@dataclass(frozen=True, slots=True)
class Enclosed:
    """A text between two tokens, (id, text) each."""

    begin: tuple[int, str]
    end: tuple[int, str]

    def template(self, num_between: int, second_type: int) -> dict[str, Any]:
        """The post-processor. Between two texts stand so many ends; `second_type` is the second text's token type."""

        def special(token: tuple[int, str], type_id: int = 0) -> dict[str, Any]:
            return {"SpecialToken": {"id": token[1], "type_id": type_id}}

        single = [special(self.begin), {"Sequence": {"id": "A", "type_id": 0}}, special(self.end)]
        between = [special(self.end, second_type) for _ in range(num_between - 1)]
        second = [{"Sequence": {"id": "B", "type_id": second_type}}, special(self.end, second_type)]
        named = {text: {"id": text, "ids": [token], "tokens": [text]} for token, text in (self.begin, self.end)}
        pair = [*single, *between, *second]
        return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": named}


def read_enclosed(
    metadata: Metadata, vocabulary: Vocabulary, defaults: tuple[int | None, int | None] = (None, None)
) -> Enclosed:
    """The tokens that begin and end a text; `defaults` where no key says. ModelError unless both are, and are special.

    Files that say that one is left out are refused: no encoder that is proven does without.
    """
    for key in ADDED:
        if not metadata.flag(key, True):
            raise ModelError(key, f"is false, and every encoder that is known adds it; {NAME_ANOTHER}")
    begin, end = (
        _special(metadata, vocabulary, keys, default)
        for keys, default in zip(((CLS, BEGIN), (SEP, ENDS[0])), defaults, strict=True)
    )
    return Enclosed(begin, end)


def _special(metadata: Metadata, vocabulary: Vocabulary, keys: tuple[str, str], default: int | None) -> tuple[int, str]:
    key = next((key for key in keys if key in metadata), keys[0])
    token = metadata.integer(key, default, least=0)
    if token >= len(vocabulary.tokens) or vocabulary.types[token] != CONTROL:
        raise ModelError(key, f"{token} is no special token of {len(vocabulary.tokens)}; {REMEDY}")
    return token, vocabulary.tokens[token]


def check_kinds(vocabulary: Vocabulary) -> None:
    """ModelError for kinds of tokens that no encoder has that is proven."""
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind not in (NORMAL, UNKNOWN, CONTROL, UNUSED):
            raise ModelError(TYPES, f"{token[:64]!r} is of type {kind}, which is not read of encoders; {NAME_ANOTHER}")
        if not token:
            raise ModelError(TOKENS, f"a token is empty; {REMEDY}")


def with_mask(metadata: Metadata, added: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Added tokens, of which the mask takes the spaces before it, as in RoBERTa and XLM-RoBERTa."""
    mask = metadata.token(MASK)
    return [token | {"lstrip": True} if token["id"] == mask else token for token in added]
