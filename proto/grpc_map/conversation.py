"""Chats: protobuf to `api` and back."""

from quire.proto import api
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_map.fields import fill, put_scalars, read, set_scalars
from quire.proto.messages.params import ParameterError

Parts = tuple[api.ContentPart, ...]
SOURCES = {"image": ("url", "data"), "video": ("url", "data", "frames")}
"""Ways to give an item, of which a part has one."""


def chat(message: pb.Chat) -> api.Chat:
    """Raises `ParameterError` for a message without a role or a content, a part without any, a tool without a name."""
    messages = []
    for index, one in enumerate(message.messages):
        if not one.HasField("role"):
            raise ParameterError(f"chat.messages[{index}].role", "is missing")
        content = _content(one, f"chat.messages[{index}]")
        calls = tuple(read(api.ToolCall, call) for call in one.tool_calls)
        messages.append(api.ChatMessage(one.role, content, one.name, one.reasoning, calls, one.tool_call_id))
    for index, tool in enumerate(message.tools):
        if not tool.HasField("name"):
            raise ParameterError(f"chat.tools[{index}].name", "is missing")
    return api.Chat(
        messages,
        message.add_generation_prompt if message.HasField("add_generation_prompt") else None,
        message.continue_final_message if message.HasField("continue_final_message") else None,
        tuple(read(api.Tool, tool) for tool in message.tools),
        message.tool_choice if message.HasField("tool_choice") else None,
        message.parallel_tool_calls if message.HasField("parallel_tool_calls") else None,
        message.template_kwargs,
        message.documents,
        api.MediaSettings(**set_scalars(message.media_settings)),
    )


def _content(message: pb.ChatMessage, field: str) -> str | Parts:
    if not message.content_parts:
        if not message.HasField("content") and not message.tool_calls and message.role != "assistant":
            raise ParameterError(f"{field}.content", "is missing")
        return message.content
    if message.HasField("content"):
        raise ParameterError(f"{field}.content_parts", "excludes content; set only one of them")
    return tuple(_part(part, f"{field}.content_parts[{index}]") for index, part in enumerate(message.content_parts))


def _part(message: pb.ContentPart, field: str) -> api.ContentPart:
    kind = message.WhichOneof("part")
    if kind is None:
        raise ParameterError(field, "is empty; set text, image or video")
    if kind == "text":
        return api.TextPart(message.text)
    part: api.ImagePart | api.VideoPart
    part = read(api.ImagePart, message.image) if kind == "image" else read(api.VideoPart, message.video)
    given = [name for name in SOURCES[kind] if getattr(part, name)]
    if len(given) > 1:
        raise ParameterError(f"{field}.{kind}.{given[1]}", f"excludes {given[0]}; set only one of them")
    if not given and not part.uuid:
        ways = "url or data" if kind == "image" else "url, data or frames"
        raise ParameterError(f"{field}.{kind}", f"is empty; set {ways}, or the uuid of what was sent before")
    return part


def chat_message(value: api.Chat) -> pb.Chat:
    """For clients; the inverse of `chat`."""
    return pb.Chat(
        messages=[_turn_message(one) for one in value.messages],
        add_generation_prompt=value.add_generation_prompt,
        continue_final_message=value.continue_final_message,
        tools=[fill(pb.Tool, tool) for tool in value.tools],
        tool_choice=value.tool_choice,
        parallel_tool_calls=value.parallel_tool_calls,
        template_kwargs=value.template_kwargs or None,
        documents=value.documents or None,
        media_settings=_settings_message(value.media_settings),
    )


def _settings_message(value: api.MediaSettings) -> pb.MediaSettings | None:
    if value == api.MediaSettings():
        return None
    message = pb.MediaSettings()
    put_scalars(message, value)
    return message


def _turn_message(one: api.ChatMessage) -> pb.ChatMessage:
    content = one.content
    return pb.ChatMessage(
        role=one.role,
        content=content if isinstance(content, str) else None,
        content_parts=() if isinstance(content, str) else [_part_message(part) for part in content],
        name=one.name or None,
        reasoning=one.reasoning or None,
        tool_calls=[fill(pb.ToolCall, call) for call in one.tool_calls],
        tool_call_id=one.tool_call_id or None,
    )


def _part_message(part: api.ContentPart) -> pb.ContentPart:
    if isinstance(part, api.TextPart):
        return pb.ContentPart(text=part.text)
    if isinstance(part, api.VideoPart):
        video = pb.VideoPart(url=part.url or None, data=part.data or None, frames=part.frames, uuid=part.uuid or None)
        return pb.ContentPart(video=video)
    image = pb.ImagePart(
        url=part.url or None, data=part.data or None, uuid=part.uuid or None, detail=part.detail or None
    )
    return pb.ContentPart(image=image)
