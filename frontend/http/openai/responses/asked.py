"""A request of `/v1/responses` with all that it refers to: responses that it continues, and single items of others."""

from collections.abc import Mapping, Sequence

import msgspec

from quire.frontend.http.fields.media_settings import media_names
from quire.frontend.http.openai.responses.database import StoredResponse
from quire.frontend.http.openai.responses.tools import ToolBox
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.frontend.limits.byte_budget import body_size
from quire.proto.api import Chat, GenerateRequest
from quire.proto.messages.params import ParameterError

NAMES = {
    "chat$": "input",
    r"chat\.messages\[\d+\]\.content_parts\[\d+\]": "input",
    r"chat\.messages": "input",
    r"chat\.template_kwargs\.reasoning_effort": "reasoning.effort",
    r"chat\.template_kwargs": "chat_template_kwargs",
    r"response_format\.json_schema": "text.format",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Fields of the pipeline's errors as this API names them; see `renamed`."""
REFERENCE = "item_reference"
MAX_REFERENCES = 1000


class _Reference(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    role: str | None = None


class _Item(msgspec.Struct):
    id: str | None = None


class AskedResponse:
    """One request. `request` or `chat` is called once; `tools` and `payload` are whole behind that."""

    def __init__(
        self,
        payload: ResponseRequest,
        earlier: Sequence[msgspec.Raw],
        wanted: Mapping[int, str],
        holders: Sequence[StoredResponse],
    ) -> None:
        """`earlier`: items of the responses it continues; `wanted`: see `references`; `holders`: where those stand."""
        self.payload = payload
        self.tools = ToolBox()
        self._earlier = earlier
        self._wanted = wanted
        self._holders = holders

    @property
    def size(self) -> int:
        """Bytes to read."""
        return (
            body_size() + sum(map(len, self._earlier)) + sum(len(one.input) + len(one.answer) for one in self._holders)
        )

    @property
    def names(self) -> dict[str, str]:
        """The names of the pipeline's fields in this request."""
        media = media_names(self.payload.mm_processor_kwargs, self.payload.media_io_kwargs)
        return self.tools.renamed | media | NAMES

    def request(self, label: str) -> GenerateRequest:
        """Raises `ParameterError`."""
        self._resolve()
        return self.payload.request(label, self._earlier, self.tools)

    def chat(self) -> Chat:
        """Raises `ParameterError`."""
        self._resolve()
        return self.payload.chat(self._earlier, self.tools)

    def _resolve(self) -> None:
        """Put the items that are referred to in their places. Raises `ParameterError`."""
        if not self._wanted or isinstance(self.payload.input, str):
            return
        ids = set(self._wanted.values())
        found = {id: raw for one in self._holders for raw in one.items if (id := _id(raw)) in ids}
        items = list(self.payload.input)
        for index, id in self._wanted.items():
            if id not in found:
                message = f"{id[:64]!r} is not stored here: never was, deleted or too old; send the item itself"
                raise ParameterError(f"input[{index}].id", message)
            items[index] = found[id]
        self.payload = msgspec.structs.replace(self.payload, input=items)


def references(input: str | Sequence[msgspec.Raw]) -> dict[int, str]:
    """Places in the input that refer to a stored item -> the item's id. Raises `ParameterError`."""
    found: dict[int, str] = {}
    if isinstance(input, str):
        return found
    for index, raw in enumerate(input):
        if len(raw) > 512:  # no reference has that many bytes
            continue
        try:
            one = msgspec.json.decode(raw, type=_Reference)
        except msgspec.DecodeError:
            continue  # whoever reads it as an item says what is wrong
        if one.id and one.role is None and one.type in (None, REFERENCE):
            found[index] = one.id
    if len(found) > MAX_REFERENCES:
        raise ParameterError("input", f"refers to {len(found)} stored items; at most {MAX_REFERENCES} are allowed")
    return found


def _id(raw: msgspec.Raw) -> str | None:
    return msgspec.json.decode(raw, type=_Item).id
