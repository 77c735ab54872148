"""Grammar of a harmony answer, as gpt-oss writes it: messages of thought come first and are free; the one message that
follows, the answer or a call, has a language of its own. Other models write a thought between marks first.
"""

from collections.abc import Callable

import msgspec

from quire.proto.messages.params import Structured, StructuredKind

START, CHANNEL, MESSAGE, END, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"
FUNCTIONS = "functions."


class ChannelCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that may be called, and the JSON Schema of its arguments; null for any object."""

    name: str
    schema: msgspec.Raw = msgspec.Raw(b"null")


class Channels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a `Structured` of the kind "channels", as JSON."""

    answer: Structured | None = None
    """The language of the final message; None where there must be a call."""
    calls: tuple[ChannelCall, ...] = ()
    in_message: bool = False
    """True where the prompt has begun a message of thought."""


def kind_of(structured: Structured) -> StructuredKind:
    """The kind that the client said."""
    if structured.kind != "channels":
        return structured.kind
    answer = msgspec.json.decode(structured.text, type=Channels).answer
    return answer.kind if answer is not None else "json_schema"


def rules(channels: Channels, mark: Callable[[str], str], until: Callable[[str, str], str]) -> str:
    """The rules, in the grammar library's language, of `start`, which refers to the grammars `answer` and `call_0`, ...

    `mark` gives a special token's symbol; `until` the rule of a name, for free text up to and with a mark.
    """
    next_message = f'until_end {mark(START)} "assistant"'
    ways = ["final"] if channels.answer is not None else []
    ways += [f"call_{index}_message" for index in range(len(channels.calls))]
    text = f"start: {next_message if channels.in_message else ''} thought* ({' | '.join(ways)})\n"
    text += f'thought: {mark(CHANNEL)} ("analysis" | "commentary") {mark(MESSAGE)} {next_message}\n'
    text += until("until_end", END)
    of_json = f'({mark(CONSTRAIN)} "json")? {mark(MESSAGE)}'
    if channels.answer is not None:
        text += f'final: {mark(CHANNEL)} FINAL {of_json} @answer\nFINAL: "final" " "?\n'
    for index, call in enumerate(channels.calls):
        header = msgspec.json.encode(f"commentary to={FUNCTIONS}{call.name}").decode()
        text += f"call_{index}_message: {mark(CHANNEL)} HEADER_{index} {of_json} @call_{index}\n"
        text += f'HEADER_{index}: {header} " "?\n'
    return text


def behind_thought(structured: Structured, mark: Callable[[str], str], until: Callable[[str, str], str]) -> str:
    """The rules, in the grammar library's language, of `start`, which refers to the grammar `body`.

    `mark` gives the symbols of a marker; `until` the rule of a name, for free text up to and with a marker.
    """
    closings = (structured.after,) if structured.after else tuple(closing for _, closing in structured.thoughts)
    ends = {f"end_{index}": closing for index, closing in enumerate(dict.fromkeys(closings))}
    thought = f"({' | '.join(ends)})"
    if structured.thoughts:
        opening = f"({' | '.join(mark(opening) for opening, _ in structured.thoughts)})"
        thought = f"{opening}? {thought}" if structured.after else f"({opening} {thought})?"
    return f"start: {thought} @body\n" + "".join(until(name, closing) for name, closing in ends.items())
