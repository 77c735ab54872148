"""tokenizer.json of RoBERTa's byte-level BPE, tokenizer.ggml.model "gpt2" of an encoder."""

from typing import Any, Final

from quire.deploy.gguf.byte_bpe import PRE, byte_bpe
from quire.deploy.gguf.enclosed import NAME_ANOTHER, check_kinds, read_enclosed, with_mask
from quire.deploy.gguf.metadata import Metadata
from quire.deploy.gguf.vocabulary import Vocabulary
from quire.worker.weights.parts import ModelError

PROVEN: Final = "roberta-bpe"


def roberta(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The file's content: words as GPT-2 has them, special tokens as BERT. Raises ModelError."""
    if (name := metadata.text(PRE, "default")) != PROVEN:
        raise ModelError(
            PRE, f"{name[:64]!r} is not proven equal to the encoder's own; proven: {PROVEN}; {NAME_ANOTHER}"
        )
    check_kinds(vocabulary)
    content = byte_bpe(metadata, vocabulary)
    content["added_tokens"] = with_mask(metadata, content["added_tokens"])
    content["post_processor"] = read_enclosed(metadata, vocabulary).template(num_between=2, second_type=0)
    return content
