"""Anthropic's coding agent against `quire serve`: it finishes a task, and every kind of its requests is understood."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from recordings import recorded, replay

HERE = Path(__file__).parent
QUESTION = "Which word is hidden in note.txt?"
IGNORED = {
    "auto_mode": ["safeguards", "system[]=x-anthropic-billing-header"],
    "web_search": ["system[]=x-anthropic-billing-header", "tools[]=web_search_20250305"],
    "count_tokens": [],
    "gateway_models": [],
}
"""Names in the header `x-quire-ignored`, by request, where it is not only the header that the agent sends as a text."""


def program() -> list[str]:
    """The agent's command: newer packages bring a binary of this system, older ones a script for node."""
    packages = HERE / "node_modules" / "@anthropic-ai"
    for command in ([], ["node"]):
        for path in packages.glob("claude-code/cli.js" if command else "claude-code-*/claude"):
            return [*command, str(path)]
    raise AssertionError("the coding agents are not installed; run `make tools`")


def ask(url: str, folder: Path, question: str) -> dict[str, object]:
    """Run the agent to its end in `folder`, with the engine at `url` and no other network; its report."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "scripted",
        "ANTHROPIC_SMALL_FAST_MODEL": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    command = [*program(), "--print", "--output-format", "json", question]
    ended = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert ended.stdout, ended.stderr
    report: dict[str, object] = json.loads(ended.stdout)
    return report


def test_it_reads_a_file_with_its_tool_and_answers(scripted, calls, tmp_path):
    note = tmp_path / "note.txt"
    note.write_text("The hidden word is heliotrope.\n")
    scripted.answers(
        (QUESTION, "<think>\nLook first.\n</think>\n\nI look." + calls("Read", file_path=str(note))),
        ("The hidden word is heliotrope", "It is heliotrope."),
    )
    report = ask(scripted.url, tmp_path, QUESTION)
    assert (report["is_error"], report["result"], report["num_turns"]) == (False, "It is heliotrope.", 2), report


@pytest.mark.thorough
def test_a_second_session_finds_the_first_ones_prefix(scripted, tmp_path):
    scripted.answers(("", "Yes."))
    cached = []
    for question in ("Is this the first session?", "Or the second one?"):
        usage = ask(scripted.url, tmp_path, question)["usage"]
        cached.append(usage["cache_read_input_tokens"] / (usage["input_tokens"] + usage["cache_read_input_tokens"]))
    assert cached[1] > 0.5, cached


@pytest.mark.thorough
def test_it_knows_that_its_prompt_is_too_long(scripted, tmp_path):
    report = ask(scripted.url, tmp_path, "\N{SECTION SIGN}" * 30_000)  # two tokens each
    assert (report["is_error"], report["terminal_reason"]) == (True, "prompt_too_long"), report["result"]


@pytest.mark.parametrize("name", recorded("claude_code"))
def test_a_recorded_request_is_understood(scripted, name):
    scripted.answers(("", '{"title": "Hidden word"}' if name == "title" else "Done."))
    answer = replay(scripted.url, "claude_code", name)
    assert answer.status_code == 200, answer.text
    named = answer.headers.get("x-quire-ignored", "").split(", ")
    assert [one for one in named if one] == IGNORED.get(name, ["system[]=x-anthropic-billing-header"])
    if name == "gateway_models":
        assert ("model", "scripted") in [(one["type"], one["id"]) for one in answer.json()["data"]]
    elif name == "count_tokens":
        assert answer.json()["input_tokens"] > 2000
    else:
        items = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
        assert [item["type"] for item in items if item["type"] != "content_block_delta"] == [
            "message_start", "ping", "content_block_start", "content_block_stop", "message_delta", "message_stop",
        ]  # fmt: skip
        text = "".join(item["delta"]["text"] for item in items if item["type"] == "content_block_delta")
        assert (json.loads(text)["title"] if name == "title" else text) in ("Hidden word", "Done.")
        assert items[-2]["delta"]["stop_reason"] == "end_turn"
