"""The texts that a chat template makes of a few chats: they show how its model writes thoughts and calls."""

from dataclasses import dataclass

from quire.proto.api import Tool, ToolCall

TOOL = Tool(
    "look_up",
    "Looks up a place.",
    '{"type": "object", "properties": {"place": {"type": "string", "description": "Its name."}}, '
    '"required": ["place"]}',
)
CALL = ToolCall("functions.look_up:0", TOOL.name, '{"place": "Oslo"}')
"""The call of the turn that is rendered; its id is of Kimi K2's kind, which names the function."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Renderings of one template, which may refuse any of the chats."""

    prompts: tuple[str, ...] = ()
    """Renderings that ask for an answer: with thinking switched on, off, and neither; with tools."""
    turns: tuple[str, ...] = ()
    """Renderings that end with an answer: behind a thought, and with a call."""
    calls: tuple[str, ...] = ()
    """The turn with `CALL`, from where the model may have begun; none where no call is shown."""
    stripped: tuple[tuple[str, str], ...] = ()
    """Pairs of marks that it takes from earlier turns, with what is between them."""
    source: str = ""
    """The template itself."""

    @property
    def text(self) -> str:
        """All renderings."""
        return "\n".join((*self.prompts, *self.turns))
