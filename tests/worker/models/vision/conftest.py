"""Tiny checkpoints of models that read images."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[3]))

import tiny_glm4v
import tiny_qwen2_5_vl
import tiny_qwen2_vl
import tiny_qwen3_vl
import tiny_qwen3_vl_moe

MODULES = (tiny_qwen2_vl, tiny_qwen2_5_vl, tiny_qwen3_vl, tiny_qwen3_vl_moe, tiny_glm4v)
FAMILIES = {family.name: family for family in (*(one.FAMILY for one in MODULES), tiny_glm4v.MOE, tiny_glm4v.NEWER)}


@pytest.fixture(scope="session")
def seeing_checkpoint(tmp_path_factory):
    """`seeing_checkpoint(family="Qwen3VL", text=None, vision=None, **others) -> folder`; the same call returns the same
    folder."""
    made = {}

    def make(family="Qwen3VL", **fields):
        key = json.dumps([family, fields], sort_keys=True, default=str)
        if key not in made:
            made[key] = FAMILIES[family].write_checkpoint(tmp_path_factory.mktemp("seeing"), **fields)
        return made[key]

    return make
