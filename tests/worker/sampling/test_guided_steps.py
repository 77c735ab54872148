"""Steps of rows with a grammar: launched ahead, beside others, in slots that are used again."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from parts.clock import GUARD

from quire.kernels.sampling.score import best
from quire.proto.messages.params import SamplingParams, Structured
from quire.worker.build_runner import build_runner
from quire.worker.config import WorkerConfig
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.sampling.grammar_masks import GrammarMatchers
from quire.worker.specs.spec import LayerKV

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from grammar_rows import CPU, END, PROMPT, WIDTH


class Toy:
    """A model whose logits are known: row t of `table` for token t."""

    def __init__(self, table):
        self.table = table

    def forward(self, batch, cache, embedded=None):
        return batch.token_ids[:, None].float()

    def logits(self, hidden):
        return self.table[hidden[:, 0].long()]

    def best(self, hidden):
        values, ids = best(self.logits(hidden))
        return ids, values.isfinite()


@pytest.fixture
def driver(settings, drive, folder):
    """A runner around a model with random but fixed logits; `driver(folder)` looks for its tokenizer elsewhere."""

    def make(tokenizer=folder):
        table = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
        config = WorkerConfig(**{**settings, "tokenizer": str(tokenizer)})
        spec = SimpleNamespace(
            vocab_size=WIDTH,
            eos_token_ids=(END,),
            num_position_axes=1,
            whole_prompts=False,
            pooling=None,
        )
        cache = KVCache(kv_layout([LayerKV(1, 1, 8, None)], 8, torch.float32), 200, torch.device("cpu"))
        return drive(build_runner(config, spec, Toy(table), cache, 400, CPU, True), 8)

    return make


LONG = Structured("regex", "(ab|ba|c){20}")
GUIDED = SamplingParams(temperature=1.0, seed=4, max_tokens=100, structured=LONG)


def tokens_of(results):
    return [np.frombuffer(result.token_ids, dtype="<i4").tolist() for result in results]


def test_steps_launched_before_the_last_one_is_collected_draw_the_same(driver, texts) -> None:
    def plans(made):
        made.scribe.admit(0, PROMPT, GUIDED)
        made.scribe.admit(1, PROMPT)
        first = made.scribe.plan([(0, 3), (1, 3)])[0]
        return [first, *(made.scribe.plan([(0, 1), (1, 1)])[0] for _ in range(12))]

    one = driver()
    in_order = tokens_of(one.runner.collect(one.runner.launch(step)) for step in plans(one))
    other = driver()
    launched = [other.runner.launch(step) for step in plans(other)]
    assert tokens_of(map(other.runner.collect, launched)) == in_order
    text = b"".join(texts[row[0]] for row in in_order)
    assert text.replace(b"ab", b"").replace(b"ba", b"").replace(b"c", b"") in (b"", b"a", b"b")


def test_a_guided_row_changes_nothing_for_its_neighbours(driver) -> None:
    made, alone = driver(), driver()
    made.scribe.admit(0, PROMPT, GUIDED)
    for each in (made, alone):
        each.scribe.admit(1, PROMPT, SamplingParams(temperature=1.0, seed=9, max_tokens=50))
    together = [tokens_of([made.run([(0, 3), (1, 3)])])[0][1]]
    by_itself = [tokens_of([alone.run([(1, 3)])])[0][0]]
    for _ in range(8):
        together.append(tokens_of([made.run([(0, 1), (1, 1)])])[0][1])
        by_itself.append(tokens_of([alone.run([(1, 1)])])[0][0])
    assert together == by_itself


def test_allowed_ids_and_grammar_hold_together_and_their_conflict_ends_that_row_alone(driver, texts) -> None:
    of_text = {text: token for token, text in texts.items()}
    allowed = SamplingParams(
        max_tokens=9, structured=Structured("regex", "[abc]+"), allowed_token_ids=(of_text[b"a"], of_text[b"z"])
    )
    conflict = msgspec.structs.replace(allowed, allowed_token_ids=(of_text[b"z"],))
    made = driver()
    made.scribe.admit(0, PROMPT, allowed)
    made.scribe.admit(1, PROMPT, conflict)
    result = made.run([(0, 3), (1, 3)])
    assert tokens_of([result])[0][0] == of_text[b"a"]
    assert result.stuck_rows == (1,)
    assert result.bad_rows == ()


def test_a_slot_that_is_used_again_knows_nothing_of_the_last_grammar(driver) -> None:
    made, fresh = driver(), driver()
    made.scribe.admit(0, PROMPT, GUIDED)
    made.run([(0, 3)])
    made.scribe.release(0)
    for each in (made, fresh):
        each.scribe.admit(0, PROMPT)
    assert tokens_of([made.run([(0, 3)])]) == tokens_of([fresh.run([(0, 3)])])


def test_without_a_tokenizer_guided_rows_fail_and_others_run(driver, tmp_path) -> None:
    made = driver(tmp_path)
    made.scribe.admit(0, PROMPT, GUIDED)
    made.scribe.admit(1, PROMPT)
    assert made.run([(0, 3), (1, 3)]).stuck_rows == (0,)


def test_steps_without_grammars_start_no_thread(driver) -> None:
    before = threading.active_count()
    made = driver()
    made.scribe.admit(0, PROMPT)
    made.run([(0, 3)])
    assert threading.active_count() == before


def test_a_long_prompt_does_not_wait_for_its_grammar(driver, monkeypatch) -> None:
    """Only the step that draws the first token does."""
    may_compile = threading.Event()
    original = GrammarMatchers.masks.__globals__["new_matcher"]
    monkeypatch.setattr(
        "quire.worker.sampling.grammar_masks.new_matcher", lambda *a: may_compile.wait(GUARD) and original(*a)
    )
    made = driver()
    made.scribe.admit(0, [*PROMPT] * 4, GUIDED)
    made.scribe.admit(1, PROMPT)
    assert len(tokens_of([made.run([(1, 3), (0, 6)])])[0]) == 1
    may_compile.set()
    assert len(tokens_of([made.run([(1, 1), (0, 6)])])[0]) == 2
