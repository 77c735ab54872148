"""Anthropic's Python client with a model that thinks and calls tools: what it sends itself, and sends back."""

import pytest
from anthropic import Anthropic, beta_tool
from parts.clock import GUARD
from pydantic import BaseModel

USER = {"role": "user", "content": "Where is the book?"}
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}}}


@pytest.fixture(scope="module")
def client(scripted):
    with Anthropic(base_url=scripted.url, api_key="none", max_retries=0, timeout=GUARD) as client:
        yield client


@pytest.fixture
def script(scripted, calls):
    scripted.answers(
        ("Where is the book?", "<think>\nhm\n</think>\n\nI look." + calls("look", place="shelf")),
        ("It lies on the shelf", "On the shelf."),
    )


def test_a_streamed_answer_goes_back_as_the_client_keeps_it(client, script):
    fields = {"model": "scripted", "max_tokens": 32_000, "tools": [TOOL], "thinking": {"type": "adaptive"}}
    with client.messages.stream(**fields, messages=[USER]) as stream:
        final = stream.get_final_message()
    thought, text, use = final.content
    assert (thought.type, thought.thinking.strip(), text.text.strip()) == ("thinking", "hm", "I look.")
    assert (use.name, use.input, final.stop_reason) == ("look", {"place": "shelf"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "It lies on the shelf."}
    history = [USER, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    whole = client.messages.create(**fields, messages=history)
    assert ([block.text for block in whole.content], whole.stop_reason) == (["On the shelf."], "end_turn")


def test_the_clients_own_loop_calls_a_function_and_ends(client, script):
    asked = []

    @beta_tool
    def look(place: str) -> str:
        """Look there."""
        asked.append(place)
        return "It lies on the shelf."

    runner = client.beta.messages.tool_runner(model="scripted", max_tokens=900, tools=[look], messages=[USER])
    assert runner.until_done().content[0].text == "On the shelf."
    assert asked == ["shelf"]


def test_an_answer_is_parsed_into_a_type(client, scripted):
    class Title(BaseModel):
        title: str

    scripted.answers(("", '{"title": "Book"}'))
    parsed = client.messages.parse(model="scripted", max_tokens=90, messages=[USER], output_format=Title)
    assert parsed.parsed_output == Title(title="Book")


def test_betas_are_accepted_and_what_they_ask_of_the_vendors_servers_is_named(client, scripted):
    scripted.answers(("", "Yes."))
    answer = client.beta.messages.with_raw_response.create(
        model="scripted",
        max_tokens=9,
        messages=[USER],
        betas=["context-management-2025-06-27", "mcp-client-2025-11-20"],
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        mcp_servers=[{"type": "url", "url": "https://tools.example", "name": "tools"}],
        tools=[{"type": "mcp_toolset", "mcp_server_name": "tools"}],
        service_tier="auto",
        metadata={"user_id": "u"},
    )
    message = answer.parse()
    assert (message.content[0].text, message.context_management.applied_edits) == ("Yes.", [])
    assert answer.headers["x-quire-ignored"].split(", ") == [
        "mcp_servers",
        "context_management.edits[]=clear_tool_uses_20250919",
        "tools[]=mcp_toolset",
    ]
