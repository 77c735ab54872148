"""How a request fares and what the engine does: the same over both servers."""

import asyncio
import base64

import msgspec
import numpy as np
import pytest
from google.protobuf import json_format

from quire.proto import grpc_map
from quire.proto.api import RequestError
from quire.proto.messages.introspection import EndedOutput, ExplainReply, LiveOutput, Moment, StepRecord, Story
from quire.proto.messages.message import Usage

STORIES = (
    Story(0, "waiting", 3, Usage(5, 2, 1, 0.5, 0.25, 0.125, 1, 2), (Moment(0.5, "blocked", 5, "why"),)),
    Story(1, "finished", 0, Usage(5, 0, 9, 0.5, 0.0, 0.0), (Moment(0.0, "queued"), Moment(1.5, "finished", 9, "stop"))),
)
LIVE = (LiveOutput("a b/c", 1, "running", -2, 1.5, 3, 2, 5, 4, 9, 7, 1),)
RECORDS = tuple(
    StepRecord(step, 8.0 + step, 4, 1, 60, 1, 0, 0.001, 0.002, 0.5, 0.25, 0.0) for step in range(1, 4)
)  # at 9, 10 and 11 s of a clock that shows 12.5


def run(main) -> None:
    asyncio.run(main())


def of_message(message) -> dict:
    """A protobuf message as JSON, numbers as numbers."""
    shown = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return int(value) if isinstance(value, str) and value.removeprefix("-").isdigit() else value

    return plain(shown)


def test_an_explanation_is_the_same_over_both_doors(web):
    async def main():
        async with web() as w:
            w.scheduler.stories["job/7~%"] = STORIES
            answer = await w.client.get("/v1/requests/job%2F7~%25")
            assert answer.status_code == 200
            message = grpc_map.explanation_message(ExplainReply(1, "job/7~%", STORIES))
            assert answer.json() == of_message(message)
            assert await w.serving.client.explain("job/7~%") == grpc_map.explanation(message)

    run(main)


def test_a_request_nobody_remembers_is_not_found_over_both_doors(web):
    async def main():
        async with web() as w:
            answer = await w.client.get("/v1/requests/gone")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_request")
            with pytest.raises(RequestError, match="'gone'") as caught:
                await w.serving.client.explain("gone")
            assert (caught.value.reason, caught.value.status) == ("UNKNOWN_REQUEST", "NOT_FOUND")
            no_id = await w.client.get("/v1/requests/a%1B%5B2J")
            assert (no_id.status_code, no_id.json()["error"]["param"]) == (400, "request_id")

    run(main)


def test_a_status_is_the_same_over_both_doors(web):
    async def main():
        async with web() as w:
            w.scheduler.live, w.scheduler.records = LIVE, RECORDS
            for after_step, count in ((None, 3), (2, 1)):
                over_http = await w.client.get("/v1/status", params={} if after_step is None else {"after_step": 2})
                over_grpc = await w.serving.client.status(after_step)
                told = over_http.json()
                assert len(told["steps"]) == len(over_grpc.steps) == count
                assert told["steps"] == [msgspec.structs.asdict(step) for step in over_grpc.steps]
                assert told["outputs"] == [msgspec.structs.asdict(one) for one in over_grpc.outputs]
                assert told["load"] == {name: getattr(over_grpc.load, name) for name in over_grpc.load.__slots__}
                assert told["now"] == over_grpc.now
                blocks = np.frombuffer(base64.b64decode(told["blocks"]), "<u2").tolist()
                assert blocks == list(over_grpc.blocks) == [0, 1, 16]

    run(main)


def test_a_status_over_http_also_tells_names_limits_and_rates(web):
    async def main():
        async with web() as w:
            w.scheduler.records = RECORDS
            told = (await w.client.get("/v1/status", params={"after_step": 3})).json()
            assert (told["model_names"], told["steps"]) == (["tiny"], [])
            assert told["limits"]["max_num_seqs"] == 256
            assert told["limits"]["block_size"] == 16
            # two steps in the 3.5 s since the first record
            assert told["rates"]["steps_per_second"] == pytest.approx(2 / 3.5)
            assert told["rates"]["decode_tokens_per_second"] == pytest.approx(8 / 3.5)
            assert told["rates"]["prefill_tokens_per_second"] == pytest.approx(120 / 3.5)
            assert told["rates"]["device_seconds"] == 0.5

    run(main)


def test_what_ended_is_told_and_only_the_new_to_whom_counts(web):
    async def main():
        async with web() as w:
            w.scheduler.ended = tuple(
                EndedOutput("a <b>", number, 0, "stop", 8.5, Usage(5, 2, 1, 0.5, 0.25, 0.125)) for number in range(1, 4)
            )
            told = (await w.client.get("/v1/requests")).json()
            assert (told["count"], told["now"]) == (3, 12.5)
            assert [one["arrival"] for one in told["outputs"]] == [1, 2, 3]
            assert (told["outputs"][0]["label"], told["outputs"][0]["usage"]["cached_tokens"]) == ("a <b>", 2)
            told = (await w.client.get("/v1/requests", params={"after": 2})).json()
            assert [one["arrival"] for one in told["outputs"]] == [3]

    run(main)


def test_the_prefix_tree_is_told_in_columns(web):
    async def main():
        async with web() as w:
            told = (await w.client.get("/v1/prefixes")).json()
            assert np.frombuffer(base64.b64decode(told["parents"]), "<i4").tolist() == [-1, 1, 1]
            assert np.frombuffer(base64.b64decode(told["readers"]), "<u2").tolist() == [0, 2, 1]

    run(main)


def test_a_status_is_packed_for_whom_can_unpack_it(web):
    async def main():
        async with web() as w:
            w.scheduler.live = LIVE * 100
            packed = await w.client.get("/v1/status", headers={"accept-encoding": "br, gzip;q=0.5"})
            plain = await w.client.get("/v1/status", headers={"accept-encoding": "identity"})
            assert packed.headers["content-encoding"] == "gzip"
            assert "content-encoding" not in plain.headers
            assert packed.num_bytes_downloaded < plain.num_bytes_downloaded / 4
            assert packed.json()["outputs"] == plain.json()["outputs"]
            assert plain.json()["model"]["num_kv_tokens"] > 0

    run(main)


def test_many_who_look_at_once_cost_the_scheduler_one_picture(web):
    async def main():
        async with web() as w:
            await w.client.get("/v1/status")
            before = w.scheduler.num_pictures
            answers = await asyncio.gather(*(w.client.get("/v1/status") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            assert w.scheduler.num_pictures - before <= 3
            await w.client.get("/slots")
            assert w.scheduler.num_pictures - before <= 3

    run(main)


@pytest.mark.parametrize("value", ["x", "1.5", "-2", "٣", "9" * 19, "9" * 40, ""])
def test_a_step_that_is_no_number_is_refused_by_name(web, value):
    async def main():
        async with web() as w:
            for path, name in (("/v1/status", "after_step"), ("/v1/requests", "after"), ("/v1/requests/x", "arrival")):
                answer = await w.client.get(path, params={name: value})
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)

    run(main)


def test_a_status_without_a_scheduler_says_so(web, tmp_path):
    async def main():
        async with web(wait=False, scheduler_address=f"ipc://{tmp_path}/nobody.sock") as w:
            for path in ("/v1/status", "/v1/requests/x", "/v1/requests", "/v1/prefixes"):
                answer = await w.client.get(path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "starting")

    run(main)
