"""The images of a model's chats: their number, their files, and their places in the prompt."""

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from quire.frontend.config import FrontendConfig
from quire.frontend.media.expand import expand, in_order, placeholders, spell
from quire.frontend.media.families.table import MediaFamily, of_request, read_family, template_of, video_rules
from quire.frontend.media.kind import MediaKind, MediaPart, kind_of
from quire.frontend.media.loader import LoadedMedia, MediaLoader
from quire.frontend.media.source import Sources, VideoBytes
from quire.frontend.metrics.metrics import Metrics
from quire.proto.api import Chat, ImagePart, VideoPart
from quire.proto.messages.introspection import Figure
from quire.proto.messages.media import MEDIA_FOLDER, Media
from quire.proto.messages.params import ParameterError

MOST = 999
"""Most images, and most videos, of a prompt where nothing else was said, as in vLLM."""
KINDS: dict[str, type[ImagePart | VideoPart]] = {"image": ImagePart, "video": VideoPart}
NOT_SEEING = ("system", "developer", "assistant")
"""Roles whose messages hold no images and no videos."""
NOT_SHOWN = (
    "the chat template has places for {} of {} {}s; leave out those of turns that it does not show, or start the "
    "server with a template that shows them, --chat-template FILE"
)

Encode = Callable[[str], Awaitable[Sequence[int]]]
"""From a rendered chat to its token ids."""


@dataclass(frozen=True, slots=True)
class ImageOwner:
    """The request that images are read for."""

    tenant: str
    """See `Call.tenant`."""
    cache_salt: str
    deadline: float
    """Monotonic time until which they must have been read."""
    files: ExitStack
    """Closed when the files may go."""
    context: int | None = None
    """Most tokens of the prompt; None where they are only counted."""


class PromptImages:
    """One per model that takes images."""

    def __init__(self, loader: MediaLoader, source: "TimedSource", limits: Mapping[str, int], metrics: Metrics) -> None:
        """`limits`: kind -> the most of them in one prompt; what is not named: `MOST`."""
        self.most_bytes = source.most_bytes
        """Most bytes of a request's body, of an image and of a video."""
        self.limits = {kind: limits.get(kind, MOST) for kind in KINDS}
        self._loader = loader
        self._source = source
        self._metrics = metrics
        metrics.media = self._figures

    @classmethod
    def of_model(cls, config: FrontendConfig, metrics: Metrics) -> "PromptImages | None":
        """None for a model that reads text alone, or is to, and for a frontend without a run directory.

        Raises `ValueError` naming the file or field, and the remedy.
        """
        if config.language_model_only or not config.run_dir:
            return None
        tokenizer, frames = Path(config.tokenizer_dir), config.media_io_kwargs
        family = read_family(Path(config.model), config.mm_processor_kwargs, tokenizer, frames)
        if family is None:
            return None
        watches = video_rules(family) is not None and config.limit_mm_per_prompt.get("video", MOST) > 0
        source = TimedSource(config, metrics, config.body_bytes(True, watches))
        folder = Path(config.run_dir) / MEDIA_FOLDER
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            loader = MediaLoader(
                family,
                source,
                folder / f"{config.index}-{secrets.token_hex(8)}",
                metrics,
                num_processes=config.media_processes,
                max_image_pixels=config.max_image_pixels,
                max_store_bytes=config.media_store_bytes,
            )
        except OSError as error:
            raise ValueError(f"run_dir: {folder}: no place for images: {error.strerror}") from error
        return cls(loader, source, config.limit_mm_per_prompt, metrics)

    async def start(self) -> None:
        """Start a process that decodes. Raises `SandboxLost`."""
        await self._loader.start()

    async def close(self) -> None:
        """End the processes, and remove the files."""
        await self._loader.close()
        await self._source.close()

    @property
    def template(self) -> str:
        """See `template_of`."""
        return template_of(self._loader.family)

    @property
    def takes_videos(self) -> bool:
        """True where the model's family reads videos."""
        return video_rules(self._loader.family) is not None

    def check(self, chat: Chat) -> None:
        """Raises `ParameterError` for images and videos of others than the user, or for too many of them, before any of
        them is looked at.
        """
        for index, turn in enumerate(chat.messages):
            if turn.role in NOT_SEEING and turn.media:
                what = "an image" if turn.images else "a video"
                wrong = f"holds {what}, which {turn.role} messages do not; send it in one of the user's"
                raise ParameterError(f"chat.messages[{index}].content_parts", wrong, "UNSUPPORTED")
        for kind, part in KINDS.items():
            fields, most = media_fields(chat, part), self.limits[kind]
            if len(fields) <= most:
                continue
            message = f"is number {most + 1} of {len(fields)} {kind}s, and a prompt may have {most}; send fewer"
            if most == 0:
                article = "an" if kind == "image" else "a"
                message = f"is {article} {kind}, and this server takes none; leave it out"
            raise ParameterError(fields[most], f"{message} (--limit-mm-per-prompt)")

    async def placed(
        self, chat: Chat, text: str, encode: Encode, owner: ImageOwner
    ) -> tuple[Sequence[int], tuple[Media, ...]]:
        """The prompt of a rendered chat with a token for each row of its items, and what stands where.

        Only where a text of its own stands for the items of an image are they loaded before the chat is encoded.
        Raises `ParameterError` or `RequestError`.
        """
        parts = [part for message in chat.messages for part in message.media]
        kinds = Counter(map(kind_of, parts))
        family, families = self._loader.family, self._families(chat, kinds)
        if family.spells or kinds["video"]:
            for kind, (place, _) in placeholders(family).items():
                _check_places(text.count(place), kinds, kind)
            loaded = await self._load(chat, parts, families, owner, owner.context)
            ids = await encode(spell(text, family, loaded.parts))
            return expand(ids, family, in_order(text, family, loaded.parts), "chat.messages")
        ids = await encode(text)
        _check_places(ids.count(family.placeholder_id), kinds, "image")
        num_others = len(ids) - len(parts)
        room = None if owner.context is None else owner.context - num_others
        loaded = await self._load(chat, parts, families, owner, room)
        return expand(ids, family, loaded.parts, "chat.messages")

    def _families(self, chat: Chat, kinds: Mapping[MediaKind, int]) -> dict[MediaKind, MediaFamily]:
        """The model's, with the settings of a request for each kind of its parts. Raises `ParameterError`."""
        own = self._loader.family
        stated = {name: value for name, value in asdict(chat.media_settings).items() if value is not None}
        if not stated:
            return {}
        try:
            families = {kind: of_request(own, stated, kind) for kind in kinds}
        except ValueError as error:
            name = next((name for name in stated if str(error).startswith(f"{name}: ")), next(iter(stated)))
            message = str(error).removeprefix(f"{name}: ")
            raise ParameterError(f"chat.media_settings.{name}", message) from error
        if any(_most(family, kind) > _most(own, kind) for kind, family in families.items()):
            name = "max_pixels" if "max_pixels" in stated else "min_pixels"
            message = "asks for more pixels than this server takes (--mm-processor-kwargs); lower it"
            raise ParameterError(f"chat.media_settings.{name}", message)
        return families

    async def _load(
        self,
        chat: Chat,
        parts: Sequence[MediaPart],
        families: Mapping[MediaKind, MediaFamily],
        owner: ImageOwner,
        max_tokens: int | None,
    ) -> LoadedMedia:
        """See `MediaLoader.load`. The files go with the owner's."""
        with self._metrics.timed("media_load_seconds"):
            loaded = await self._loader.load(
                parts,
                fields=media_fields(chat),
                tenant=owner.tenant,
                cache_salt=owner.cache_salt,
                seconds=owner.deadline - time.monotonic(),
                max_tokens=max_tokens,
                families=families,
            )
        owner.files.callback(loaded.release)
        for part in parts:
            self._metrics.count(f"{kind_of(part)}s_total", ())
        return loaded

    def _figures(self) -> Iterator[Figure]:
        store = self._loader.store
        yield Figure("media_store_bytes", store.num_bytes)
        yield Figure("media_store_used_bytes", store.num_used_bytes)


def _most(family: MediaFamily, kind: MediaKind) -> int:
    """The most that a part of this kind may be: bytes of an image, pixels of a video."""
    rules = video_rules(family)
    return family.max_bytes if kind == "image" else 0 if rules is None else rules.max_pixels


def _check_places(num_places: int, kinds: Mapping[MediaKind, int], kind: MediaKind) -> None:
    num_parts = kinds.get(kind, 0)
    if num_places != num_parts:
        raise ParameterError("chat.messages", NOT_SHOWN.format(num_places, num_parts, kind), "UNSUPPORTED")


class TimedSource:
    """The bytes of images and videos, and how long it takes to get them."""

    def __init__(self, config: FrontendConfig, metrics: Metrics, most_bytes: int) -> None:
        """`most_bytes`: of one image or video. Raises `ValueError` naming the field."""
        self.most_bytes = most_bytes
        self._sources = Sources(
            most_bytes,
            allowed_local_media_path=config.allowed_local_media_path,
            allowed_media_domains=config.allowed_media_domains,
        )
        self._metrics = metrics

    async def read(self, part: ImagePart, field: str, seconds: float) -> bytes | memoryview:
        """See `Sources.read`."""
        with self._metrics.timed("media_read_seconds"):
            return await self._sources.read(part, field, seconds)

    async def read_video(self, part: VideoPart, field: str, seconds: float) -> VideoBytes:
        """See `Sources.read_video`."""
        with self._metrics.timed("media_read_seconds"):
            return await self._sources.read_video(part, field, seconds)

    async def close(self) -> None:
        """End the child processes and the threads."""
        await self._sources.close()


def media_fields(chat: Chat, *kinds: type[ImagePart | VideoPart]) -> list[str]:
    """The fields of a chat's parts of these kinds, in their order; of images and videos where none are named."""
    wanted = kinds or tuple(KINDS.values())
    return [
        f"chat.messages[{index}].content_parts[{at}]"
        for index, message in enumerate(chat.messages)
        if not isinstance(message.content, str)
        for at, part in enumerate(message.content)
        if isinstance(part, wanted)
    ]
