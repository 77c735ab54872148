"""OpenAI's coding agent finishes tasks against `quire serve`: first turn, tool call, result, answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from recordings import recorded, replay

HERE = Path(__file__).parent
QUESTION = "Which word is hidden in note.txt?"
CONFIG = """
model = "scripted"
model_provider = "quire"
model_context_window = 131072

[model_providers.quire]
name = "quire"
base_url = "{url}/v1"
wire_api = "responses"
"""
PATCH = '*** Begin Patch\n*** Add File: new.txt\n+The word is "heliotrope".\n*** End Patch\n'
IGNORED = {
    "custom_tool": ["text.verbosity", "tools[].type=web_search"],
    "namespaces": ["reasoning.context", "text.verbosity"],
    "tool_result": ["tools[].type=web_search"],
}


def program() -> str:
    """The agent's program, which its package brings as a binary of this system."""
    found = [*(HERE / "node_modules" / "@openai").glob("codex-*/vendor/*/bin/codex")]
    assert found, "the coding agents are not installed; run `make tools`"
    return str(found[0])


def ask(engine, folder: Path, *arguments: str) -> list[dict[str, object]]:
    """Run the agent to its end in `folder`; the events that it reports."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CONFIG.format(url=engine.url))
    flags = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    ended = subprocess.run(
        [program(), "exec", *flags, *arguments], cwd=folder, stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def texts(events: list[dict[str, object]]) -> list[str]:
    """The agent's messages."""
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def test_it_runs_a_command_and_answers(scripted, calls, tmp_path):
    (tmp_path / "note.txt").write_text("The hidden word is heliotrope.\n")
    scripted.answers(
        (QUESTION, "<think>\nLook first.\n</think>\n\nI look." + calls("exec_command", cmd="cat note.txt")),
        ("The hidden word is heliotrope", "It is heliotrope."),
    )
    events = ask(scripted, tmp_path, QUESTION)
    assert texts(events) == ["I look.", "It is heliotrope."]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (run,) = [item for item in items if item["type"] == "command_execution"]
    assert (run["exit_code"], run["aggregated_output"]) == (0, "The hidden word is heliotrope.\n")
    assert events[-1]["type"] == "turn.completed"
    assert 0 < events[-1]["usage"]["output_tokens"] < 200


@pytest.mark.thorough
def test_it_edits_a_file_with_a_tool_that_takes_free_text(scripted, calls, tmp_path):
    scripted.answers(
        (QUESTION, calls("apply_patch", input=PATCH)),
        ("Success. Updated the following files", "I wrote it down."),
    )
    events = ask(scripted, tmp_path, "--model", "gpt-5.5", QUESTION)
    assert texts(events) == ["I wrote it down."]
    assert (tmp_path / "new.txt").read_text() == 'The word is "heliotrope".\n'


@pytest.mark.thorough
def test_it_runs_a_tool_of_a_namespace_that_an_item_brings(scripted, calls, tmp_path):
    scripted.answers(
        (QUESTION, calls("functions__exec", input='text("six times seven is " + 6 * 7)')),
        ("six times seven is 42", "Done."),
    )
    assert texts(ask(scripted, tmp_path, "--model", "gpt-6.1-sol", QUESTION)) == ["Done."]


@pytest.mark.parametrize("name", recorded("codex"))
def test_a_recorded_request_is_understood(scripted, name):
    scripted.answers(("", "<think>\nhm\n</think>\n\nDone."))
    answer = replay(scripted.url, "codex", name)
    assert answer.status_code == 200, answer.text
    assert sorted(answer.headers["x-quire-ignored"].split(", ")) == IGNORED[name]
    told = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    last = told[-1]["response"]
    assert (told[-1]["type"], last["status"], last["store"]) == ("response.completed", "completed", False)
    assert [item["type"] for item in last["output"]] == ["reasoning", "message"]
    assert last["output"][1]["content"][0]["text"] == "Done."
