"""Images of a message as OpenAI, Anthropic and Ollama write them, and what they mean as `api.ImagePart`.

Whatever an address says, nobody looks into it here: `frontend/media` does, under the rules of this server.
"""

import msgspec

from quire.frontend.http.fields.tagged import read_tagged
from quire.frontend.media.data_url import decode_base64
from quire.frontend.media.refused import MediaRefused
from quire.proto import api
from quire.proto.messages.params import ParameterError


class ImageUrl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    url: str = ""
    detail: str | None = None


class ImageUrlPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`image_url` of a chat. By its `uuid`, which is vLLM's, an image that was sent before is found again."""

    type: str
    image_url: str | ImageUrl | None = None
    uuid: str | None = None
    cache_control: msgspec.Raw = msgspec.Raw()
    """A hint about caching. Prefixes are cached anyway."""

    def part(self, path: str) -> api.ImagePart:
        """Raises `ParameterError`."""
        given = self.image_url if isinstance(self.image_url, ImageUrl) else ImageUrl(url=self.image_url or "")
        if not (given.url or self.uuid):
            raise ParameterError(f"{path}.image_url", "is missing; send the image's address, or a data: URL with it")
        return api.ImagePart(given.url, uuid=self.uuid or "", detail=given.detail or "")


class InputImage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`input_image` of `/v1/responses`."""

    type: str
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None

    def part(self, path: str) -> api.ImagePart:
        """Raises `ParameterError`."""
        if self.file_id:
            message = "names a file, and this server keeps none; send the image itself in image_url, as a data: URL"
            raise ParameterError(f"{path}.file_id", message, "UNSUPPORTED")
        if not self.image_url:
            raise ParameterError(f"{path}.image_url", "is missing; send the image's address, or a data: URL with it")
        return api.ImagePart(self.image_url, detail=self.detail or "")


class Base64Source(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    data: str
    media_type: str | None = None
    """Ignored: the bytes say what they are."""

    def part(self, path: str) -> api.ImagePart:
        """Raises `ParameterError`."""
        return image_of(self.data, f"{path}.data")


class UrlSource(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    url: str

    def part(self, path: str) -> api.ImagePart:
        """Raises `ParameterError`."""
        if not self.url:
            raise ParameterError(f"{path}.url", "is empty; send the image's address")
        return api.ImagePart(self.url)


SOURCES: dict[str, type[Base64Source | UrlSource]] = {"base64": Base64Source, "url": UrlSource}


class ImageBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`image` of `/v1/messages`."""

    type: str
    source: msgspec.Raw
    cache_control: msgspec.Raw = msgspec.Raw()
    """A hint about caching. Prefixes are cached anyway."""

    def part(self, path: str) -> api.ImagePart:
        """Raises `ParameterError`."""
        at = f"{path}.source"
        return read_tagged(self.source, SOURCES, at).part(at)


def image_of(text: str, path: str) -> api.ImagePart:
    """The image whose file this is in base64, spaced as in `data:` URLs. Raises `ParameterError`."""
    if not text:
        raise ParameterError(path, "is empty; send the bytes of the image's file in base64")
    try:
        return api.ImagePart(data=bytes(decode_base64(text, 0, max_bytes=len(text))))
    except MediaRefused:
        raise ParameterError(
            path, "is not base64; send the bytes of the image's file in it, and no data: URL"
        ) from None
