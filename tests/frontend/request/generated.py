"""What a generate call was asked for, and what came."""

from quire.proto.api import Delta


def text_of(events, index=0) -> str:
    return "".join(e.text for e in events if isinstance(e, Delta) and e.output_index == index)


def ids_of(events, index=0) -> list[int]:
    return [t for e in events if isinstance(e, Delta) and e.output_index == index for t in e.token_ids]


async def read(s, request) -> list:
    return [event async for event in s.client.stream(request)]
