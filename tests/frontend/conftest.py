"""A tiny byte-level tokenizer, and a whole frontend in this process with a scripted scheduler."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from parts import nursery
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from quire.frontend.config import FrontendConfig
from quire.frontend.sandbox import child_process
from quire.frontend.server import FrontendServer
from quire.proto.client import AsyncClient
from quire.proto.messages.media import MediaFacts

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from fake_scheduler import FakeScheduler, facts, until
from parts.clock import GUARD

SPECIALS = ("<|end|>", "<|turn|>", "<|start|>")
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
SIGHT_SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>", "<|image_pad|>")
SIGHT_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "size": {"shortest_edge": 4 * 32 * 32, "longest_edge": 64 * 32 * 32},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""4 to 64 tokens an image, each of 32 x 32 pixels."""
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "hello hello world",
    "naïve café €5 日本語 🙂🙃",
    "stop here now",
]


@pytest.fixture(scope="session", autouse=True)
def forked_sandboxes() -> Iterator[None]:
    """Children of sandboxes are forked; those of `sandbox/test_parent.py` and of whole processes start as they do."""
    with pytest.MonkeyPatch.context() as patch:
        forked = SimpleNamespace(Popen=nursery.Popen, TimeoutExpired=subprocess.TimeoutExpired)
        patch.setattr(child_process, "subprocess", forked)
        yield


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tokenizer(directory, SPECIALS, TEMPLATE)
    return directory


@pytest.fixture(scope="session")
def sight_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes images."""
    directory = tmp_path_factory.mktemp("sight")
    tokenizer = write_tokenizer(directory, (*SPECIALS, *SIGHT_SPECIALS), SIGHT_TEMPLATE)
    (directory / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    ids = {f"{kind}_token_id": tokenizer.token_to_id(f"<|{kind}_pad|>") for kind in ("image", "video")}
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3_vl"} | ids))
    return directory


def write_tokenizer(directory: Path, specials: tuple[str, ...], template: str) -> Tokenizer:
    """The files of a model that a frontend reads of all models."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(specials), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": "<|end|>", "bos_token": {"content": "<|start|>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "top_k": 7}))
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


class Serving:
    """A frontend, its fake scheduler and a client."""

    def __init__(self, scheduler: FakeScheduler, server: FrontendServer, port: int, client: AsyncClient) -> None:
        self.scheduler = scheduler
        self.server = server
        self.port = port
        self.target = f"127.0.0.1:{port}"
        self.client = client
        self.until = until
        self.new_scheduler = FakeScheduler

    def figures(self) -> dict[tuple[str, ...], float]:
        """What the frontend has counted, by name and values of labels."""
        samples = self.server.metrics_page.metrics.samples()
        return {(sample.name, *(value for _, value in sample.labels)): sample.value for sample in samples}

    async def ready(self) -> None:
        await until(lambda: self.server.scheduler.state == "ready")

    async def lose(self) -> None:
        """The scheduler says nothing more, and has been silent for longer than any may be."""
        self.scheduler.muted = True
        clock = self.server.scheduler._silence_clock
        clock.seconds = lambda: math.inf
        await until(lambda: self.server.scheduler.state == "lost")
        del clock.seconds

    def pass_time(self, seconds: float) -> None:
        """So much time is over for open requests: their deadlines, and how long they wait for a scheduler."""
        now = self.server.scheduler._now
        self.server.scheduler._now = lambda: now() + seconds


@pytest.fixture
def serving(model_dir: Path, tmp_path: Path) -> Callable[..., object]:
    """`async with serving(**config) as s:` inside a coroutine a test runs with `asyncio.run`."""

    @asynccontextmanager
    async def start(
        wait: bool = True,
        api_key: str | None = None,
        media: MediaFacts | None = None,
        length: int = 512,
        ends: tuple[int, ...] = (0,),
        **changes: object,
    ) -> AsyncIterator[Serving]:
        address = f"ipc://{tmp_path}/s.sock"
        values: dict[str, object] = {
            "scheduler_address": address,
            "model": str(model_dir),
            "served_model_names": ("tiny",),
            "beat_seconds": 0.05,
            "lost_after_seconds": GUARD,
            "resume_window_seconds": GUARD,
            "drain_seconds": GUARD,
        }
        server = FrontendServer(FrontendConfig(**{**values, **changes}))
        async with FakeScheduler(address) as scheduler:
            scheduler.facts = facts(media=media, max_model_len=length, eos_token_ids=ends)
            port = await server.start()
            running = asyncio.create_task(server.run())
            try:
                async with AsyncClient(f"127.0.0.1:{port}", api_key) as client:
                    serving = Serving(scheduler, server, port, client)
                    if wait:
                        await serving.ready()
                    yield serving
            finally:
                server.drain()
                server.drain()
                await running

    return start


@pytest.fixture
def sight(serving: Callable[..., object], sight_dir: Path, tmp_path: Path) -> dict[str, object]:
    """Arguments of `serving`, or of what starts it, for a model that takes images."""
    return {"model": str(sight_dir), "run_dir": str(tmp_path), "media": MediaFacts(("image",), 4, 16, 64)}


@pytest.fixture
def watch(sight: dict[str, object]) -> dict[str, object]:
    """The same for a model that takes videos, too."""
    return sight | {"media": MediaFacts(("image", "video"), 4, 16, 64)}
