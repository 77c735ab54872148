"""The directory that is made of a GGUF file, and that everybody reads: its metadata as files, and a link to it."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from quire.deploy.gguf.byte_bpe import byte_bpe, roberta
from quire.deploy.gguf.config import BEGIN, ENDS, config_of
from quire.deploy.gguf.encoder import encoder_config
from quire.deploy.gguf.metadata import Metadata
from quire.deploy.gguf.pooling import CONFIG, MODULES, pooling_files
from quire.deploy.gguf.sampling import generation_config
from quire.deploy.gguf.sentencepiece import sentencepiece
from quire.deploy.gguf.unigram import unigram
from quire.deploy.gguf.vocabulary import Vocabulary, end_ids, read_vocabulary, token_of
from quire.deploy.gguf.wordpiece import wordpiece
from quire.worker.weights.gguf.files import files_of, read_files
from quire.worker.weights.gguf.names import ARCHITECTURE, ENCODER
from quire.worker.weights.parts import ModelError

NAME: Final = "from-gguf"
"""Name of the directory in the run directory."""
MODEL: Final = "tokenizer.ggml.model"
Tokenizers = dict[str, Callable[[Metadata, Vocabulary], dict[str, Any]]]
TOKENIZERS: Final[Tokenizers] = {"gpt2": byte_bpe, "llama": sentencepiece}
"""Those of decoders."""
OF_ENCODERS: Final[Tokenizers] = {"bert": wordpiece, "t5": unigram, "gpt2": roberta}
GENERATION: Final = "generation_config.json"
MADE: Final = ("config.json", GENERATION, "tokenizer.json", "tokenizer_config.json", MODULES, CONFIG)
TEMPLATE: Final = "tokenizer.chat_template"
NAMED_TEMPLATES: Final = ("tool_use",)
TOKENS: Final = {
    "bos_token": BEGIN,
    "eos_token": ENDS[0],
    "pad_token": "tokenizer.ggml.padding_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
}
"""Tokens that templates may name -> the key of each."""


def make_folder(path: Path, folder: Path, with_tokenizer: bool) -> None:
    """Write config.json, tokenizer.json, tokenizer_config.json and links to the files of the model at `path`.

    Where a pooling is stated the files of sentence-transformers say it, and where sampling is, generation_config.json.
    Without `with_tokenizer` no tokenizer.json is made, and none needs to be possible. Raises ModelError and
    CheckpointError for what is not served, OSError where nothing can be written.
    """
    files = files_of(path)
    model = read_files(files, with_arrays=True)
    metadata = Metadata(model.metadata)
    arch = metadata.text(ARCHITECTURE)
    config = encoder_config(model) if arch == ENCODER else config_of(model)
    vocabulary = read_vocabulary(metadata, config["vocab_size"])
    if arch != ENCODER:
        config["eos_token_id"] = end_ids(metadata, vocabulary)
    made = {"config.json": config, "tokenizer_config.json": _tokenizer_config(metadata, vocabulary)}
    made |= pooling_files(metadata, arch)
    if sampling := generation_config(metadata):
        made[GENERATION] = sampling
    if with_tokenizer:
        made["tokenizer.json"] = _tokenizer(metadata, vocabulary, OF_ENCODERS if arch == ENCODER else TOKENIZERS)
    folder.mkdir(mode=0o700, exist_ok=True)
    clear(folder)
    for name, content in made.items():
        (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    for file in files:
        (folder / file.name).symlink_to(file.absolute())


def clear(folder: Path) -> None:
    """Remove what was made there, and nothing else."""
    for path in (*folder.glob("*"), folder / CONFIG):
        if path.is_symlink() or str(path.relative_to(folder)) in MADE:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or holds more
        (folder / CONFIG).parent.rmdir()


def _tokenizer(metadata: Metadata, vocabulary: Vocabulary, known: Tokenizers) -> dict[str, Any]:
    kind = metadata.text(MODEL)
    if kind not in known:
        raise ModelError(
            MODEL,
            f"{kind[:64]!r} is not supported; supported: {', '.join(known)}; name the directory of the model's "
            "tokenizer.json with --tokenizer",
        )
    return known[kind](metadata, vocabulary)


def _tokenizer_config(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The chat templates, and the tokens that they may name."""
    named = {name: token_of(metadata, key, vocabulary) for name, key in TOKENS.items()}
    config: dict[str, Any] = {name: token for name, token in named.items() if token is not None}
    if TEMPLATE in metadata:
        templates = {"default": metadata.text(TEMPLATE)}
        templates |= {name: metadata.text(key) for name in NAMED_TEMPLATES if (key := f"{TEMPLATE}.{name}") in metadata}
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    return config
