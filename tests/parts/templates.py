"""What a chat template shows of its model's answers, found in this process instead of its child."""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cached_property

from quire.frontend.chat.probe import Probe
from quire.frontend.chat.render_child import prepare
from quire.frontend.chat.template import ChatTemplate, RenderJob
from quire.frontend.parsing.reasoning.table import MARKS
from quire.frontend.parsing.shown import Shown


class Unconfined(ChatTemplate):
    """A template without the process around it."""

    @cached_property
    def _answer(self) -> Callable[[bytes], bytes]:
        return prepare(json.dumps(self.sources).encode())

    async def render(self, job: RenderJob) -> bytes:
        return self._answer(job.payload)


def shown_by(source: str, specials: Sequence[str] = ()) -> Shown:
    template = Unconfined({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"}, specials, 5.0)
    return asyncio.run(Probe(template).shown(MARKS))
