"""Models by name: the first is there before any request, others are made when first asked for.

The second model is a stand-in for several models in one deployment, which brings its configuration and its engine.
"""

import asyncio
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from quire.frontend import server
from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.request.model_lookup import ModelLookup
from quire.frontend.request.served_model import ServedModel
from quire.frontend.text.encode_threads import EncodeThreads
from quire.proto.api import GenerateRequest, RequestError


class Made:
    """Counts how often it is made and started."""

    def __init__(self, log, name):
        self._log, self._name = log, name
        log.append(f"{name} made")

    async def start(self):
        self._log.append(f"{self._name} started")

    async def close(self):
        self._log.append(f"{self._name} closed")


def test_the_first_is_made_at_once_and_another_once_for_all_who_wait_for_it():
    log = []
    lookup = ModelLookup([(("a", "alias"), lambda: Made(log, "a")), (("b",), lambda: Made(log, "b"))])
    assert log == ["a made"]
    assert lookup.names == ("a", "alias", "b")

    async def main():
        await lookup.start()
        first = [await lookup.find(name) for name in (None, "a", "alias")]
        assert first == [lookup.default] * 3
        assert log == ["a made", "a started"]
        others = await asyncio.gather(*(lookup.find("b") for _ in range(5)))
        assert len(set(others)) == 1
        assert log[2:] == ["b made", "b started"]
        with pytest.raises(RequestError, match="model 'c' is not served here; send 'a', ") as caught:
            await lookup.find("c")
        assert caught.value.reason == "UNKNOWN_MODEL"
        await lookup.close()
        assert sorted(log[4:]) == ["a closed", "b closed"]

    asyncio.run(main())


def test_a_model_that_nobody_asked_for_is_neither_made_nor_closed():
    log = []
    lookup = ModelLookup([(("a",), lambda: Made(log, "a")), (("b",), lambda: Made(log, "b"))])
    asyncio.run(lookup.close())
    assert log == ["a made", "a closed"]


def test_requests_take_tokenizer_template_and_defaults_of_the_model_they_name(serving, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    words = Tokenizer(models.WordLevel({"hello": 7, "[UNK]": 8}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(other / "tokenizer.json"))
    (other / "generation_config.json").write_text(json.dumps({"top_k": 3}))

    threads = EncodeThreads(1)

    def lookup(makers):
        config = FrontendConfig(scheduler_address="ipc://x", model=str(other), served_model_names=("other",))
        both = ModelLookup(
            [*makers, (("other",), lambda: ServedModel(config, both.default.scheduler, threads, Metrics()))]
        )
        return both

    async def main():
        async with serving() as s:
            tokens = [await s.server.pipeline.tokenize("hello hello", model) for model in ("tiny", "other", None)]
            assert list(tokens[1].token_ids) == [7, 7]
            assert list(tokens[0].token_ids) == list(tokens[2].token_ids) != [7, 7]
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [7])
            answers = {}
            for model in ("tiny", "other"):
                answers[model] = await s.client.generate(GenerateRequest(input="hello", model=model))
            assert {name: answer.model for name, answer in answers.items()} == {"tiny": "tiny", "other": "other"}
            assert answers["other"].outputs[0].text == "hello" != answers["tiny"].outputs[0].text
            assert [submit.params.top_k for submit in s.scheduler.submits] == [7, 3]

    monkeypatch.setattr(server, "ModelLookup", lookup)
    asyncio.run(main())
    threads.close()
