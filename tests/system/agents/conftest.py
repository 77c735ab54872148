"""A real `quire serve` whose worker follows a script, for clients that need a model which can call tools."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

HERE = Path(__file__).parent
EMBEDDED = HERE.parents[2] / "deploy" / "model"
MAX_MODEL_LEN = 1 << 16


class ScriptedEngine:
    """An engine that answers what it is told: see `scripted/sitecustomize.py`."""

    def __init__(self, engine, script: Path) -> None:
        self.engine = engine
        self.url = f"http://{engine.http}"
        self._script = script

    def answers(self, *answers: tuple[str, str]) -> None:
        """From now on a prompt gets the last of these texts whose first part stands in it: (part, text)."""
        self._script.write_text(json.dumps([{"after": after, "answer": answer} for after, answer in answers]))


def calls(name: str, **arguments: object) -> str:
    """The text with which the scripted model calls a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="session", name="calls")
def calls_fixture() -> Callable[..., str]:
    return calls


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded tokenizer, a context that agents fit into, and a template with tools and reasoning."""
    folder = tmp_path_factory.mktemp("scripted")
    for name in ("tokenizer.json", "generation_config.json"):
        (folder / name).symlink_to(EMBEDDED / name)
    config = json.loads((EMBEDDED / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": MAX_MODEL_LEN}))
    settings = json.loads((EMBEDDED / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").symlink_to(HERE / "chat_template.jinja")
    return folder


@pytest.fixture(scope="session")
def script_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of what the engine says."""
    file = tmp_path_factory.mktemp("script") / "script.json"
    file.write_text("[]")
    return file


@pytest.fixture(scope="module")
def scripted(shared, scripted_model, script_file) -> ScriptedEngine:
    """The engine; its model is called `scripted`, and as models whose tools an agent knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE / "scripted"), prepend=os.pathsep)
        patch.setenv("TEST_SCRIPT", str(script_file))
        names = ("--served-model-name", "scripted", "gpt-5.5", "gpt-6.1-sol")
        flags = ("--load-format=dummy", *names, "--max-num-batched-tokens=16K")
        engine = shared(str(scripted_model), *flags)
    return ScriptedEngine(engine, script_file)
