"""Videos of a message as vLLM's clients write them, and what they mean as `api.VideoPart`."""

import msgspec

from quire.proto import api
from quire.proto.messages.params import ParameterError


class VideoUrl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    url: str = ""


class VideoUrlPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`video_url` of a chat. By its `uuid` a video that was sent before is found again."""

    type: str
    video_url: str | VideoUrl | None = None
    uuid: str | None = None
    cache_control: msgspec.Raw = msgspec.Raw()
    """A hint about caching. Prefixes are cached anyway."""

    def part(self, path: str) -> api.VideoPart:
        """Raises `ParameterError`."""
        url = self.video_url.url if isinstance(self.video_url, VideoUrl) else self.video_url or ""
        if not (url or self.uuid):
            message = "is missing; send the video's address, or a data: URL with it or with its frames"
            raise ParameterError(f"{path}.video_url", message)
        return api.VideoPart(url, uuid=self.uuid or "")
