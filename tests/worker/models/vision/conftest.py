"""Tiny checkpoints of models that read images."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[3]))

from tiny_qwen3_vl import write_checkpoint


@pytest.fixture(scope="session")
def seeing_checkpoint(tmp_path_factory):
    """`seeing_checkpoint(text=None, vision=None, **others) -> folder`; the same call returns the same folder."""
    made = {}

    def make(**fields):
        key = json.dumps(fields, sort_keys=True, default=str)
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("seeing"), **fields)
        return made[key]

    return make
