"""Rows with a grammar."""

import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from grammar_rows import END, pre_tokenizers_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level tokenizer with some longer tokens, of letters, digits and what JSON needs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["abba bab abc ab ba", '{"a": [1, 2, 12], "ab": "ba"}', "éé ü"] * 9, trainer)
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def texts(folder):
    """The bytes of each token."""
    of_unicode = {character: byte for byte, character in pre_tokenizers_bytes().items()}
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return {token: bytes(of_unicode[c] for c in text) for text, token in vocabulary.items() if token != END}
