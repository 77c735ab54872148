"""A conversation, and the functions its model may call."""

from collections.abc import Sequence
from dataclasses import dataclass, field

JSON_COST = 8
"""Plain characters that cost as much as one of JSON, which may be a part by itself."""
MESSAGE_COST = 64
"""Plain characters that cost as much as a message without any, or as a part."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made. `arguments` is the text of a JSON object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Growth of one call: `id` and `name` come once, with its first delta; `arguments` is to be appended."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. `parameters` is the text of a JSON Schema of an object; empty: no parameters."""

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of a turn's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image of a turn: by `url` (http, https, file or data), as `data`, or by `uuid` alone where its bytes are kept.

    Of `url` and `data` at most one is set.
    """

    url: str = field(default="", repr=False)  # neither it nor `data` ever reaches a log
    data: bytes = field(default=b"", repr=False)
    """Bytes of its file."""
    uuid: str = ""
    """The client's name for it, by which a later request of the same key may leave out the bytes; empty: none."""
    detail: str = ""
    """Accepted for other engines' clients; the pixels are the model's own business."""


@dataclass(frozen=True, slots=True)
class VideoPart:
    """A video of a turn: by `url` as an image is, as `data`, as `frames`, or by `uuid` alone where its bytes are kept.

    Of `url`, `data` and `frames` at most one is set.
    """

    url: str = field(default="", repr=False)
    data: bytes = field(default=b"", repr=False)
    """Bytes of its file."""
    frames: tuple[bytes, ...] = field(default=(), repr=False)
    """Bytes of the files of pictures that are its frames, in their order."""
    uuid: str = ""
    """As of an image."""


ContentPart = TextPart | ImagePart | VideoPart


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """Wishes of a request for its images and videos; None: as the server has it."""

    min_pixels: int | None = None
    """Fewest pixels of an image after it is resized, and of a video: of each of its frames (Qwen2-VL, Qwen2.5-VL), or
    of all that are taken together (Qwen3-VL)."""
    max_pixels: int | None = None
    """Most of them."""
    fps: float | None = None
    """Frames that are taken of each second of a video. Not together with `num_frames`."""
    num_frames: int | None = None
    """Frames that are taken of a video."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str | Sequence[ContentPart] = ""
    """A text, or parts."""
    name: str = ""
    reasoning: str = ""
    """Reasoning of an assistant's earlier turn."""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    """Id of the call that a `tool` turn answers."""

    @property
    def text(self) -> str:
        """All text of the content, its parts one behind the other."""
        if isinstance(self.content, str):
            return self.content
        return "".join([part.text for part in self.content if isinstance(part, TextPart)])

    @property
    def parts(self) -> Sequence[ContentPart]:
        """The content as parts."""
        return [TextPart(self.content)] if isinstance(self.content, str) else self.content

    @property
    def images(self) -> list[ImagePart]:
        """The images of the content, in their order."""
        return [part for part in self.parts if isinstance(part, ImagePart)]

    @property
    def media(self) -> list[ImagePart | VideoPart]:
        """The images and videos of the content, in their order."""
        return [] if isinstance(self.content, str) else [one for one in self.content if not isinstance(one, TextPart)]


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, rendered by the server with the model's own template."""

    messages: Sequence[ChatMessage]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Sequence[Tool] = ()
    tool_choice: str | None = None
    """"auto", "none", "required", or "function:NAME"; None is auto with tools, none without."""
    parallel_tool_calls: bool | None = None
    """False: at most one call per answer."""
    template_kwargs: str = ""
    """A JSON object, the template's variables; empty: none."""
    documents: str = ""
    """A JSON list of objects that the template shows beside the messages; empty: none."""
    media_settings: MediaSettings = MediaSettings()

    @property
    def cost(self) -> int:
        """Cost of checking and escaping it, in characters of plain text. Nobody looks into images or videos for it."""
        plain = sum(len(one.text) + len(one.reasoning) for one in self.messages)
        num_parts = sum(len(one.content) for one in self.messages if not isinstance(one.content, str))
        plain += sum(len(tool.description) for tool in self.tools)
        json_text = len(self.template_kwargs) + len(self.documents) + sum(len(tool.parameters) for tool in self.tools)
        json_text += sum(len(call.arguments) for one in self.messages for call in one.tool_calls)
        return plain + JSON_COST * json_text + MESSAGE_COST * (len(self.messages) + num_parts)
