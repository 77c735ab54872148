"""One model as this frontend serves it: what its files say, the children that read them, the engine that runs it."""

import logging
from dataclasses import replace
from pathlib import Path

from quire.frontend.chat.checks import template_kwargs
from quire.frontend.chat.load_template import load_template
from quire.frontend.chat.probe import Probe
from quire.frontend.chat.turn_end import behind_answer
from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.parsing.formats import OFF, AnswerFormat, AnswerFormats
from quire.frontend.parsing.reasoning.table import MARKS
from quire.frontend.parsing.reasoning.wish import EFFORT, NO_EFFORT, SWITCHES, wanted
from quire.frontend.parsing.shown import Shown
from quire.frontend.request.defaults import Defaults, load_defaults, overridden
from quire.frontend.request.prompt_images import PromptImages, media_fields
from quire.frontend.request.sentence_settings import sentence_settings
from quire.frontend.sandbox.grammar import GrammarChecker
from quire.frontend.stream.scheduler_client import SchedulerClient
from quire.frontend.text.async_tokenizer import AsyncTokenizer
from quire.frontend.text.encode_threads import EncodeThreads
from quire.frontend.text.infill import find_infill
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import Chat, GenerateRequest, ImagePart, VideoPart
from quire.proto.messages.params import ParameterError
from quire.proto.messages.requests import ModelFacts

UNPARSED = "the chat template shows tools, but the format of its calls is not known: they are answered as text"
MISREAD = "the parser {!r} does not read the calls that the chat template shows: they may be answered as text"
ENDLESS = (
    "the chat template ends an answer with %s, and the model's files name as ends: %s; answers may go on behind it; "
    """name it with --hf-overrides '{"eos_token_id": %d}', or as stop_token_ids in every request"""
)
UNREAD = (
    "is {}, and this model reads text alone; leave it out, or ask a model that takes {} (those whose "
    "input_modalities in /v1/models say so)"
)
UNWATCHED = (
    "is a video, which this model does not take; send pictures of it as images, or ask a model that takes videos "
    "(those whose input_modalities in /v1/models say so)"
)
UNSEEN = (
    "are not shown by this model's chat template, and there is no parser for its calls; for agents start the server "
    "with a model whose template shows tools, or with --chat-template FILE; to have tools ignored, with "
    "--tool-call-parser hermes; or set tool_choice to required or to a function, which a grammar forces"
)
UNSWITCHED = (
    "asks for no reasoning ('none', 'disabled' or false), but this model's chat template has no switch for it; leave "
    "it out (a chat may set include_reasoning to false, which leaves the reasoning out of its answer)"
)

NO_CHATS = "modality_config makes a chat of every text, and there is no template for it; set --chat-template FILE"

log = logging.getLogger("quire.frontend")


class ServedModel:
    """Everything of one model that its requests share."""

    def __init__(
        self, config: FrontendConfig, scheduler: SchedulerClient, threads: EncodeThreads, metrics: Metrics
    ) -> None:
        """Read the model's files. Raises `ValueError` naming the file and the remedy."""
        self.names = config.served_model_names
        """Names a request may ask for; the first is reported."""
        self.tokenizer = TextTokenizer(config.tokenizer_dir)
        self.images = PromptImages.of_model(config, metrics)
        """None: its files know of no images."""
        self.template = load_template(
            config.tokenizer_dir,
            config.chat_template,
            self.tokenizer.special_texts,
            config.template_seconds,
            "" if self.images is None else self.images.template,
        )
        """None: it takes no chats."""
        self.pair_template = self.template
        """The template of a query and a document; None: it has none for them."""
        if not config.chat_template and self.template is not None and not self.template.shows_pairs:
            self.pair_template = None
        self.infill = find_infill(self.tokenizer)
        """None: it does not fill in between a prompt and a suffix."""
        stated = load_defaults(config.model) if config.use_generation_config else Defaults()
        self.defaults = overridden(stated, config.override_generation_config)
        self._settings = config.tool_call_parser, config.reasoning_parser
        self._finds_tools = config.tool_call_parser not in ("", OFF)
        self._reads = True
        """False where the parser of calls does not read the one that the chat template shows."""
        self.formats = self._formats()
        """The formats that are named; those that the chat template shows come with `start`."""
        self.sentence = sentence_settings(Path(config.model))
        if self.sentence.chats and self.sentence.task == "embed" and self.template is None:
            raise ValueError(f"{config.model}: {NO_CHATS}")
        self.async_tokenizer = AsyncTokenizer(config, self.tokenizer, threads)
        self.grammars = GrammarChecker(config)
        self.scheduler = scheduler

    @property
    def facts(self) -> ModelFacts | None:
        """Facts that the workers measured; None before the first worker was ready."""
        welcome = self.scheduler.welcome
        return None if welcome is None else welcome.facts

    def called(self, name: str | None) -> str:
        """The served name of a request that asked for `name`, which is one of `names` or None."""
        return self.names[0] if name is None else name

    @property
    def warning(self) -> str:
        """The reason why tools are of little use here; empty: they are of use, refused, or not looked for."""
        known = self.formats.tools
        if self.template is None or not self.template.shows_tools or not self._finds_tools or (known and self._reads):
            return ""
        wrong = UNPARSED if known is None else MISREAD.format(known.name)
        return f"{wrong}; set --tool-call-parser to the format that the model writes"

    @property
    def takes_images(self) -> bool:
        """True where its frontend reads images and its workers encode them. False before any worker was ready."""
        return self.images is not None and self._encodes("image")

    @property
    def takes_videos(self) -> bool:
        """The same of videos."""
        return self.images is not None and self.images.takes_videos and self._encodes("video")

    def most_of(self, kind: str) -> int:
        """Most images, or videos, of one prompt; 0: the model takes none."""
        taken = self.takes_images if kind == "image" else self.takes_videos
        return self.images.limits[kind] if taken and self.images is not None else 0

    def check_media(self, chat: Chat) -> None:
        """Raises `ParameterError` for images and videos that the model does not take, or for too many."""
        for field in () if self.takes_images else media_fields(chat, ImagePart):
            raise ParameterError(field, UNREAD.format("an image", "images"), "UNSUPPORTED")
        for field in () if self.takes_videos else media_fields(chat, VideoPart):
            wrong = UNWATCHED if self.takes_images else UNREAD.format("a video", "videos")
            raise ParameterError(field, wrong, "UNSUPPORTED")
        if self.images is not None:
            self.images.check(chat)

    def check_tools(self, chat: Chat) -> None:
        """Raises `ParameterError` for tools that the model would never see, and nobody would find its calls.

        Not behind a call: it was forced, and the answer to its result is wanted as text.
        """
        if not chat.tools or chat.tool_choice not in (None, "auto") or self.formats.tools is not None:
            return
        if any(message.tool_calls or message.role == "tool" for message in chat.messages):
            return
        if self.template is not None and not self.template.shows_tools:
            raise ParameterError("chat.tools", UNSEEN, "UNSUPPORTED")

    def check_thinking(self, request: GenerateRequest, chat: Chat, answer_format: AnswerFormat | None) -> None:
        """Raises `ParameterError` for a chat that wants no reasoning, of a model that cannot be switched.

        A variable may say so of a model that may not reason; and an answer may leave its reasoning out.
        """
        row, variables = self.formats.reasoning, template_kwargs(chat)
        if row is None or wanted(variables) is not False or self._has_switch or request.include_reasoning is False:
            return
        reasons = row.is_joint or (answer_format is not None and answer_format.starts_in_reasoning)
        strict = variables.get(EFFORT) == NO_EFFORT
        if reasons or strict:
            name = EFFORT if strict else next(name for name in SWITCHES if variables.get(name) is False)
            raise ParameterError(f"chat.template_kwargs.{name}", UNSWITCHED, "UNSUPPORTED")

    @property
    def _has_switch(self) -> bool:
        return self.template is not None and self.template.thinking.exists

    def _encodes(self, kind: str) -> bool:
        facts = self.facts
        return facts is not None and facts.media is not None and kind in facts.media.kinds

    def _formats(self, shown: Shown | None = None) -> AnswerFormats:
        """The formats of answers, with ids of calls that the chat template takes back."""
        formats = AnswerFormats.choose(*self._settings, shown)
        if self.template is None or self.template.call_ids is None:
            return formats
        return replace(formats, id_length=self.template.call_ids.size)

    async def start(self) -> None:
        """Start a process for the chat template, and one for images. Raises `SandboxLost`."""
        if (name := self.sentence.default_prompt) is not None:
            log.info(
                "%s: the prompt %s is put in front of every text: %r", self.names[0], name, self.sentence.prompts[name]
            )
        if self.template is not None:
            await self.template.start()
            if self._finds_tools or "auto" in self._settings:
                shown = await Probe(self.template).shown(MARKS)
                self.formats = self._formats(shown)
                self._reads = not shown.calls or self.formats.reads(shown.calls)
        if self.warning:
            log.warning("%s: %s", self.names[0], self.warning)
        if self.images is not None:
            await self.images.start()

    async def check_turn_end(self) -> None:
        """Warn where no token that the chat template writes behind an answer is an end of the model."""
        if self.facts is None or self.facts.task != "generate" or self.template is None:
            return
        ids, marks = await behind_answer(self.template, self.tokenizer)
        ends = self.facts.eos_token_ids
        if marks and not set(ids) & set(ends):
            named = ", ".join(map(self.tokenizer.token_text, ends)) or "none"
            log.warning(f"%s: {ENDLESS}", self.names[0], marks[0], named, self.tokenizer.specials.ids[marks[0]])

    async def close(self) -> None:
        """End the child processes."""
        if self.template is not None:
            await self.template.close()
        await self.async_tokenizer.close()
        await self.grammars.close()
        if self.images is not None:
            await self.images.close()
