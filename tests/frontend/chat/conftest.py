"""Chats rendered by a template, in its processes or without them."""

import sys
from pathlib import Path

import pytest

from quire.frontend.chat.load_template import load_template
from quire.frontend.text.tokenizer import TextTokenizer

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from rendering import SPECIALS


@pytest.fixture(scope="module")
def text_tokenizer(model_dir):
    return TextTokenizer(str(model_dir))


@pytest.fixture(scope="module")
def template(model_dir):
    return load_template(str(model_dir), "", SPECIALS)
