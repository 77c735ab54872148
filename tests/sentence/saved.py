"""Folders that sentence-transformers saved, and what it makes of texts with them; see `make.py`."""

import base64
import functools
import json
from pathlib import Path


@functools.cache
def _saved():
    return json.loads(Path(__file__).with_name("saved.json").read_text())


def names(field):
    """The folders that have answers of this kind: "vectors" or "scores"."""
    return [name for name, answers in _saved()["folders"].items() if field in answers]


def answers(name):
    """Texts or pairs, their ids, and vectors or scores."""
    return _saved()["folders"][name]


def write(name, folder):
    """The files of a folder, in `folder`, which is there and empty."""
    for path, key in answers(name)["files"].items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(base64.b64decode(_saved()["blobs"][key]))
    return folder
