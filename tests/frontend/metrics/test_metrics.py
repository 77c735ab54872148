"""The metrics page of a real frontend: what is counted, and under which names."""

import asyncio
import sys
import urllib.request
from functools import partial
from pathlib import Path

import grpc
import msgspec
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

from quire.frontend.call import Call
from quire.frontend.metrics.families import FAMILIES
from quire.proto.api import Chat, ChatMessage, EmbedRequest, GenerateRequest, RequestError
from quire.proto.messages.heads import EmbeddingVector
from quire.proto.messages.introspection import StepRecord
from quire.proto.messages.params import Structured
from quire.proto.messages.requests import Outputs
from quire.proto.metrics.families import SCHEDULER_FAMILIES

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from metrics_page import answer_five, run, scrape
from parts.clock import GUARD


def test_a_request_leaves_its_times_tokens_and_reason(serving):
    async def case(s):
        s.scheduler.script = partial(answer_five, s)
        await s.client.generate(GenerateRequest(input="hello world", max_tokens=5, n=1))
        page, content_type = await scrape(s.server)
        assert content_type.startswith("text/plain")
        assert page("quire_requests_total", door="grpc") == 1
        assert page("quire_time_to_first_token_seconds_count") == 1
        assert page("quire_inter_token_latency_seconds_count") == 4
        assert page("quire_generation_tokens_total") == 5
        assert page("quire_prompt_tokens_total") == page("quire_request_prompt_tokens_sum") > 0
        assert page("quire_prompt_tokens_cached_total") == 1
        assert page("quire_request_queue_seconds_sum") == pytest.approx(0.1)
        assert page("quire_request_prefill_seconds_sum") == pytest.approx(0.2)
        assert page("quire_request_decode_seconds_sum") == pytest.approx(0.3)
        assert page("quire_time_per_output_token_seconds_sum") == pytest.approx(0.3 / 4)
        assert page("quire_request_params_max_tokens_sum") == 5
        assert page("quire_request_finishes_total", reason="length") == 1
        assert page("quire_request_finishes_total", reason="stop") == 0
        assert page("quire_grpc_responses_total", method="/quire.v1.Inference/Generate", code="OK") == 1
        assert page("quire_requests_in_flight") == 0
        assert page("quire_arrival_to_submit_seconds_count") == 1
        assert page("quire_tokenize_seconds_count") == 1
        assert page("quire_frontend_memory_bytes", frontend="0") > 1 << 20

    run(serving, case)


def test_refusals_of_the_frontend_and_of_the_scheduler_are_counted_by_reason_word(serving):
    async def case(s):
        def refuse(submit):
            end = s.scheduler.finish(submit.number, 0, "rejected", error="QUEUE_FULL", retry_after_seconds=1.0)
            s.scheduler.outputs(submit.number, [], [end])

        s.scheduler.script = refuse
        for wrong in (GenerateRequest(input="x", temperature=-1), GenerateRequest(input="x", model="nobody")):
            with pytest.raises(RequestError):
                await s.client.generate(wrong)
        with pytest.raises(RequestError):
            await s.client.generate(GenerateRequest(input="x"))
        samples = s.server.metrics_page.metrics.samples
        # A refusal is counted once it is told.
        await s.until(lambda: sum(one.value for one in samples() if one.name == "grpc_responses_total") == 3)
        page, _ = await scrape(s.server)
        assert page("quire_request_rejections_total", reason="INVALID_PARAMETER") == 1
        assert page("quire_request_rejections_total", reason="UNKNOWN_MODEL") == 1
        assert page("quire_request_rejections_total", reason="QUEUE_FULL") == 1
        assert page("quire_requests_total", door="grpc") == 3
        assert page("quire_request_failures_total", reason="QUEUE_FULL") == 0
        assert page("quire_request_finishes_total", reason="error") == 0
        method = "/quire.v1.Inference/Generate"
        assert page("quire_grpc_responses_total", method=method, code="INVALID_ARGUMENT") == 1
        assert page("quire_grpc_responses_total", method=method, code="RESOURCE_EXHAUSTED") == 1

    run(serving, case)


def test_rendering_tokenisation_and_grammars_are_timed_apart(serving):
    async def case(s):
        s.scheduler.script = partial(answer_five, s)
        chat = Chat([ChatMessage("user", "hello")])
        await s.client.generate(GenerateRequest(input=chat, max_tokens=5))
        with pytest.raises(RequestError):
            await s.client.generate(GenerateRequest(input="x", structured=Structured("regex", "(")))
        page, _ = await scrape(s.server)
        assert page("quire_render_seconds_count") == 1
        assert page("quire_tokenize_seconds_count") == 2
        assert page("quire_grammar_compile_seconds_count") == 1
        assert page("quire_grammar_compiles_total", outcome="invalid") == 1
        assert page("quire_grammar_compiles_total", outcome="accepted") == 0
        assert page("quire_request_rejections_total", reason="INVALID_GRAMMAR") == 1

    run(serving, case)


def test_vectors_are_counted_with_their_prompts_and_have_no_tokens(serving):
    async def case(s):
        def embed(submit):
            end = s.scheduler.finish(submit.number, 0)
            vector = EmbeddingVector(submit.number, np.ones(4, dtype="<f4").tobytes())
            s.scheduler.send(Outputs(1, b"", b"", b"", b"", (end,), (), (vector,)))

        s.scheduler.facts = msgspec.structs.replace(s.scheduler.facts, task="embed", embedding_size=4)
        s.scheduler.change("ready")
        await s.until(lambda: s.server.scheduler.welcome.facts.task == "embed")
        s.scheduler.script = embed
        made = await s.client.embed(EmbedRequest(inputs=("hello", "world hello")))
        page, _ = await scrape(s.server)
        assert page("quire_embeddings_total") == 2
        assert page("quire_prompt_tokens_total") == made.prompt_tokens
        assert page("quire_generation_tokens_total") == page("quire_time_to_first_token_seconds_count") == 0
        assert page("quire_request_duration_seconds_count") == 2

    run(serving, case)


def test_the_outputs_of_a_client_that_leaves_are_aborts_without_times(serving):
    async def case(s):
        s.scheduler.script = lambda submit: s.scheduler.outputs(submit.number, [(0, 0, 70)])
        events = s.client.stream(GenerateRequest(input="x", n=3))
        await anext(events)
        during, _ = await scrape(s.server)
        assert during("quire_requests_in_flight") == 1
        await events.aclose()
        await s.until(lambda: s.server.pipeline.num_open == 0)
        page, _ = await scrape(s.server)
        assert page("quire_client_aborts_total") == 1
        assert page("quire_request_finishes_total", reason="abort") == 3
        assert page("quire_requests_in_flight") == 0
        assert page("quire_request_duration_seconds_count") == page("quire_request_generation_tokens_count") == 0
        assert page("quire_grpc_responses_total", method="/quire.v1.Inference/Stream", code="CANCELLED") == 1

    run(serving, case)


@pytest.mark.parametrize("keys", ["", "some-long-key\n"])
def test_a_method_nobody_serves_is_counted_as_other(serving, tmp_path, keys):
    (tmp_path / "keys").write_text(keys)

    async def case(s):
        async with grpc.aio.insecure_channel(s.target) as channel:
            for name in ("/quire.v1.Inference/Nothing", "/made.Up/Name"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary(name)(b"")

        def counted() -> dict[str, float]:
            samples = s.server.metrics_page.metrics.samples()
            return {dict(one.labels)["method"]: one.value for one in samples if one.name == "grpc_responses_total"}

        await s.until(lambda: counted() == {"other": 2})  # a refusal is counted once it is told

    run(serving, case, **({"api_key_file": str(tmp_path / "keys")} if keys else {}))


def test_a_reader_that_is_too_slow_is_a_failure_of_its_own_kind(serving):
    async def case(s):
        async with s.server.pipeline.open(GenerateRequest(input="x", max_tokens=400), Call("grpc")) as stream:
            s.scheduler.outputs(stream.number, [(0, 0, 70)])
            await stream.take()
            s.scheduler.outputs(stream.number, [(0, at, 70) for at in range(1, 60)])
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()
        page, _ = await scrape(s.server)
        assert page("quire_slow_readers_total") == 1
        assert page("quire_request_failures_total", reason="SLOW_READER") == 1
        assert page("quire_request_finishes_total", reason="error") == 1
        assert page("quire_client_aborts_total") == 0

    run(serving, case, slow_reader_bytes=200)


def test_a_request_whose_scheduler_is_lost_failed_and_its_unknown_times_are_left_out(serving):
    async def case(s):
        s.scheduler.script = lambda submit: s.scheduler.outputs(submit.number, [(0, 0, 70)])
        events = s.client.stream(GenerateRequest(input="x"))
        await anext(events)
        await anext(events)
        await s.lose()
        with pytest.raises(RequestError):
            async for _ in events:
                pass
        page, _ = await scrape(s.server)
        assert page("quire_request_failures_total", reason="SCHEDULER_LOST") == 1
        assert page("quire_request_finishes_total", reason="error") == 1
        assert page("quire_request_queue_seconds_count") == 0
        assert page("quire_time_to_first_token_seconds_count") == 1

    run(serving, case, resume_window_seconds=0.3)


def test_what_is_submitted_again_is_counted(serving):
    async def case(s):
        asked = asyncio.create_task(s.client.generate(GenerateRequest(input="x", max_tokens=2)))
        await s.scheduler.submitted()
        s.scheduler.life = "life-2"
        s.scheduler.peers.clear()
        again = await s.scheduler.submitted(2)
        s.scheduler.answer(again.number, [70, 71])
        await asked
        page, _ = await scrape(s.server)
        assert page("quire_request_resumes_total") == 1
        assert page("quire_requests_total", door="grpc") == 1

    run(serving, case)


def test_routes_and_methods_are_closed_sets_however_clients_call(serving):
    async def case(s):
        def get(path: str, method: str = "GET") -> None:
            url = f"http://127.0.0.1:{s.server.http_port}{path}"
            try:
                urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=GUARD).close()
            except urllib.error.HTTPError as error:
                error.close()

        for path in ("/a", "/b/c", "/metrics/../../etc", "/metrics?x=1"):
            await asyncio.to_thread(get, path)
        await asyncio.to_thread(get, "/metrics", "PROPFIND")
        page, _ = await scrape(s.server)
        found = {key for key in page.samples if key[0] == "quire_http_responses_total"}
        assert page("quire_http_responses_total", route="other", method="GET", code="404") == 3
        assert page("quire_http_responses_total", route="/metrics", method="GET", code="200") == 1
        assert {dict(labels)["method"] for _, labels in found} == {"GET", "other"}
        assert {dict(labels)["route"] for _, labels in found} == {"other", "/metrics"}

    run(serving, case)


def test_every_series_of_both_tables_is_on_the_page_with_its_type_and_help(serving):
    async def case(s):
        page, _ = await scrape(s.server)
        for table in (FAMILIES, SCHEDULER_FAMILIES):
            for name, described in table.items():
                family = page.families["quire_" + name.removesuffix("_total" * (described.kind == "counter"))]
                assert (family.type, family.documentation) == (described.kind, described.help), name
        buckets = [labels for (name, labels) in page.samples if name == "quire_inter_token_latency_seconds_bucket"]
        bounds = sorted(float(dict(labels)["le"]) for labels in buckets)
        assert bounds[0] == 0.001

    run(serving, case)


def test_the_schedulers_figures_are_on_the_page_and_the_page_outlives_the_scheduler(serving):
    async def case(s):
        page, _ = await scrape(s.server)
        assert page("quire_scheduler_up") == page("quire_engine_ready") == 1
        assert page("quire_requests_running") == 3
        assert page.families["quire_model_info"].samples[0].labels["model_name"] == "tiny"
        await s.lose()
        page, _ = await scrape(s.server)
        assert page("quire_scheduler_up") == page("quire_engine_ready") == 0
        assert ("quire_requests_running", frozenset()) not in page.samples
        assert page("quire_requests_total", door="grpc") == 0

    run(serving, case)


OPEN_METRICS = "application/openmetrics-text"
ACCEPTED = {
    "Prometheus 2": f"{OPEN_METRICS};version=1.0.0;q=0.5,{OPEN_METRICS};version=0.0.1;q=0.4,text/plain;q=0.3",
    "Prometheus 3": f"{OPEN_METRICS};version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.4,*/*;q=0.1",
    "Prometheus 3, underscores": f"{OPEN_METRICS};version=1.0.0;escaping=underscores;q=0.5,*/*;q=0.1",
    "a collector": OPEN_METRICS,
}
"""What they send as Accept."""


def test_openmetrics_is_given_to_those_who_ask_with_the_names_of_the_plain_page(serving):
    async def case(s):
        plain = {name for name, _ in (await scrape(s.server))[0].samples}
        assert {"vllm:num_requests_running", "vllm:request_success_total", "quire_requests_total"} <= plain
        for accepted in ACCEPTED.values():
            request = urllib.request.Request(
                f"http://127.0.0.1:{s.server.http_port}/metrics", headers={"accept": accepted}
            )

            def get(request=request) -> str:
                with urllib.request.urlopen(request, timeout=GUARD) as answer:
                    assert answer.headers["content-type"].startswith(OPEN_METRICS)
                    return answer.read().decode()

            text = await asyncio.to_thread(get)
            assert plain <= {sample.name for family in open_metrics(text) for sample in family.samples}

    run(serving, case, vllm_metric_names=True)


def test_vllms_names_stand_beside_ours_with_its_labels(serving):
    async def case(s):
        s.scheduler.script = partial(answer_five, s)
        s.scheduler.records = tuple(
            StepRecord(step, 8.0 + step, 7, 1, 70, 1, 0, 0.001, 0.002, 0.5, 0.25, 0.0) for step in range(1, 4)
        )
        await s.client.generate(GenerateRequest(input="hello", max_tokens=5))
        page, _ = await scrape(s.server)
        base = {"model_name": "tiny", "engine": "0"}
        assert page("vllm:avg_prompt_throughput_toks_per_s", **base) == 40  # two steps since the first, 3.5 s ago
        assert page("vllm:avg_generation_throughput_toks_per_s", **base) == 4
        assert page("vllm:generation_tokens_total", **base) == page("quire_generation_tokens_total") == 5
        assert page("vllm:request_success_total", finished_reason="length", **base) == 1
        assert page("vllm:inter_token_latency_seconds_count", **base) == 4
        assert page("vllm:e2e_request_latency_seconds_bucket", le="+Inf", **base) == 1
        assert page("vllm:cache_config_info", block_size="16", num_gpu_blocks="64", **base) == 1
        assert page.families["vllm:lora_requests_info"].samples[0].value > 1e9
        for (name, labels), value in page.samples.items():
            if name.startswith("vllm:") and name != "vllm:lora_requests_info":  # guides behind collectors have no colon
                assert page(name.replace(":", "_"), **dict(labels)) == value
        assert page("vllm:time_per_output_token_seconds_count", **base) == 4
        for gauge, value in (
            ("num_requests_running", 3),
            ("num_requests_waiting", 4),
            ("kv_cache_usage_perc", 0.5),
            ("gpu_cache_usage_perc", 0.5),
            ("cpu_cache_usage_perc", 0.0),
        ):
            assert page.families[f"vllm:{gauge}"].type == "gauge"
            assert page(f"vllm:{gauge}", **base) == value

    run(serving, case, vllm_metric_names=True)


def test_without_the_flag_no_name_of_vllms_is_given(serving):
    async def case(s):
        page, _ = await scrape(s.server)
        assert [name for name in page.families if not name.startswith("quire_")] == []

    run(serving, case)
