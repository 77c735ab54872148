"""A greedy loop over the decoder, batches built by hand, and the reference: transformers' own greedy generation."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # for ranks, which import this file as programs

from parts.recorded import recorded

from quire.kernels.attention.attention import PagedBatch
from quire.worker.batch import Embedded, ForwardBatch, GroupBatch
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Group, Groups, SingleGroup
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.models.build import describe, load_model
from quire.worker.models.decoder import Decoder
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.library import apart
from quire.worker.specs.registry import read_spec
from quire.worker.start import start

BLOCK_SIZE = 8


@dataclass
class Row:
    """One sequence: its tokens so far, how many are in the cache, its blocks in the first KV group and in others."""

    tokens: list[int]
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    in_others: list[list[int]] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


class Greedy:
    """Generates with a decoder and its cache; blocks are handed out backwards, so that nothing lies in order.

    With `hides` two tokens of three are 0 in the batch, and their embeddings are put in place: a double of an
    encoder's images.
    """

    @torch.inference_mode()
    def __init__(
        self,
        decoder: Decoder,
        group_size: int = 1,
        num_blocks: int = 2048,
        hides: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        layout = kv_layout(decoder.spec.kv_layers(group_size), BLOCK_SIZE, dtype)
        self.decoder = decoder
        self.cache = KVCache(layout, num_blocks, torch.device("cpu"))
        self._free = list(range(num_blocks))
        self._vectors = decoder.embedding.embed(torch.arange(decoder.spec.vocab_size)) if hides else None

    @torch.inference_mode()
    def step(self, work: list[tuple[Row, int]]) -> None:
        """Run `count` tokens of each row; a row that reaches its last known token gets the next one."""
        work = sorted(work, key=lambda item: item[1] != 1)
        for row, count in work:
            for group, blocks in zip(self.cache.layout.groups, self._tables(row), strict=True):
                while len(blocks) * group.block_size < row.num_computed + count:
                    blocks.append(self._free.pop())
        batch = self._batch(work)
        last = batch.groups[0].attention.query_starts[1:].long() - 1
        logits = self.decoder.logits(self.decoder(*self._hidden(batch))[last])
        for (row, count), scores in zip(work, logits, strict=True):
            row.num_computed += count
            if row.num_computed == len(row.tokens):
                row.tokens.append(int(scores.argmax()))
                row.logprobs.append(float(scores.log_softmax(-1).max()))
                row.logits.append(scores)

    def generate(self, prompts: list[list[int]], num_tokens: int, chunk: int = 1 << 30) -> list[Row]:
        rows = [Row(list(prompt)) for prompt in prompts]
        ends = [len(prompt) + num_tokens for prompt in prompts]
        while work := [
            (row, min(chunk, len(row.tokens) - row.num_computed))
            for row, end in zip(rows, ends, strict=True)
            if len(row.tokens) < end
        ]:
            self.step(work)
        return rows

    @torch.inference_mode()
    def states(self, prompts: list[list[int]]) -> torch.Tensor:
        """Last hidden states of whole prompts in one step, one behind the other."""
        work = [(Row(list(prompt)), len(prompt)) for prompt in prompts]
        for row, count in work:
            row.blocks.extend(self._free.pop() for _ in range(0, count, BLOCK_SIZE))
        return self.decoder(self._batch(work), self.cache)

    def _hidden(self, batch: ForwardBatch) -> tuple[ForwardBatch, KVCache, Embedded | None]:
        """What the decoder takes."""
        if self._vectors is None:
            return batch, self.cache, None
        hidden = batch.positions[0] % 3 > 0
        embedded = Embedded(batch.token_ids.where(hidden, -1), self._vectors)
        return replace(batch, token_ids=batch.token_ids.masked_fill(hidden, 0)), self.cache, embedded

    def _tables(self, row: Row) -> list[list[int]]:
        """The blocks of a row in each KV group."""
        while 1 + len(row.in_others) < len(self.cache.layout.groups):
            row.in_others.append([])
        return [row.blocks, *row.in_others]

    def _batch(self, work: list[tuple[Row, int]]) -> ForwardBatch:
        positions = [range(row.num_computed, row.num_computed + count) for row, count in work]
        sizes, tables = self.cache.layout.block_sizes, zip(*(self._tables(row) for row, _ in work), strict=True)
        groups = [self._group(work, positions, size, table) for size, table in zip(sizes, tables, strict=True)]
        return ForwardBatch(
            token_ids=torch.tensor([row.tokens[p] for (row, _), run in zip(work, positions, strict=True) for p in run]),
            positions=torch.tensor([[p for run in positions for p in run]]),
            groups=tuple(groups),
        )

    @staticmethod
    def _group(
        work: list[tuple[Row, int]], positions: list[range], size: int, held: tuple[list[int], ...]
    ) -> GroupBatch:
        """What the layers of one KV group read: blocks of `size` tokens, `held` by each row."""
        ends = torch.tensor([0, *(count for _, count in work)]).cumsum(0)
        width = max(map(len, held))
        # what a table holds past its row's blocks means nothing: make it absurd
        tables = [blocks + [2**31 - 1] * (width - len(blocks)) for blocks in held]
        seq_lens = tuple(row.num_computed + count for row, count in work)
        slot_mapping = [
            blocks[p // size] * size + p % size for blocks, run in zip(held, positions, strict=True) for p in run
        ]
        attention = PagedBatch(
            block_tables=torch.tensor(tables, dtype=torch.int32),
            slots=torch.arange(len(work), dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            query_starts=ends.int(),
            num_decodes=sum(count == 1 for _, count in work),
            query_lens_host=tuple(count for _, count in work),
            seq_lens_host=seq_lens,
            schedules={},
        )
        return GroupBatch(torch.tensor(slot_mapping), attention)


@pytest.fixture(scope="session")
def load() -> Callable[..., Decoder]:
    """`load(folder, group=SingleGroup(), dtype=torch.float32, **fields) -> Decoder`; `fields`: of `read_spec`."""

    def load_decoder(
        folder: Path, group: Group | None = None, dtype: torch.dtype = torch.float32, **fields: Any
    ) -> Decoder:
        context = BuildContext(group or SingleGroup(), torch.device("cpu"), dtype, everywhere(DenseScheme()))
        return load_model(folder, read_spec(folder, **fields), context).model

    return load_decoder


@pytest.fixture(scope="session")
def greedy() -> type[Greedy]:
    return Greedy


@pytest.fixture(scope="session")
def reference() -> Callable[..., list[tuple[list[int], list[float]]]]:
    """`reference(folder, prompts, num_tokens)`: (all tokens, logprobs of the new ones) by transformers, from the record
    where it has them."""

    def generate(folder: Path, prompts: list[list[int]], num_tokens: int) -> list[tuple[list[int], list[float]]]:
        found = recorded("tokens", [folder, prompts, num_tokens], lambda: by_library(folder, prompts, num_tokens))
        return [(prompt + tokens, logprobs) for prompt, (tokens, logprobs) in zip(prompts, found, strict=True)]

    def by_library(folder: Path, prompts: list[list[int]], num_tokens: int) -> list[tuple[list[int], list[float]]]:
        """The new tokens, and their logprobs."""
        import transformers

        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",  # torch's own attention caps no scores
        )
        model.generation_config.eos_token_id = None
        rope = getattr(model.config, "rope_parameters", None) or {}
        # the frequencies of a dynamic rope hang on the longest sequence of a batch, Llama 4's positions on its padding
        alone = rope.get("rope_type") == "dynamic" or model.config.model_type == "llama4_text"
        batches = [[prompt] for prompt in prompts] if alone else [prompts]
        return [row for batch in batches for row in at_once(model, batch, num_tokens)]

    def at_once(model: Any, prompts: list[list[int]], num_tokens: int) -> list[tuple[list[int], list[float]]]:
        width = max(map(len, prompts))
        output = model.generate(
            torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logprobs = torch.stack(output.logits, dim=1).float().log_softmax(-1).amax(-1)
        return [(tokens[width:], row) for tokens, row in zip(output.sequences.tolist(), logprobs.tolist(), strict=True)]

    return generate


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Sixteen prompts of mixed lengths, 1 to 70 tokens, on both sides of block edges."""
    generator = torch.Generator().manual_seed(7)
    lengths = (1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 33, 40, 64, 70)
    return [torch.randint(0, 320, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture
def described_here(monkeypatch):
    """The library describes its models in this process, which has imported it: another one's start costs seconds."""
    monkeypatch.setattr(apart, "_describe", lambda folder, _: describe(Path(folder)))


@pytest.fixture
def started(settings, drive):
    """`started(folder, **changes)`: a driver of the started model, with its facts."""
    threads = torch.get_num_threads()

    def make(folder, **changes):
        config = WorkerConfig(**{**settings, "model": str(folder), **changes})
        worker = start(config, 0, Device("cpu", 0), Groups)
        driver = drive(worker.executor, config.block_size)
        driver.facts = worker.facts
        return driver

    yield make
    torch.set_num_threads(threads)
