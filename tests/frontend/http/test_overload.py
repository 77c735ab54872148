"""A full queue, repeated by the frontend: what it costs, who may try, and when it is forgotten."""

import asyncio
from types import SimpleNamespace

import pytest

from quire.frontend.metrics.metrics import Metrics
from quire.frontend.request.overload import EXPIRY_SECONDS, TRY_SECONDS, Overload
from quire.proto.api import GenerateRequest, RequestError

LIMITS = SimpleNamespace(max_num_queued_tokens=1000)
FULL = RequestError("QUEUE_FULL", "100 requests wait, at most 100 may", retry_after_seconds=2.0)


class Moment:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def stream(failure: RequestError | None = None, num_prompt: int = 1) -> SimpleNamespace:
    prepared = SimpleNamespace(prompt=[5] * num_prompt)
    return SimpleNamespace(failure=failure, was_accepted=failure is None, prepared=prepared)


def refusals(overload: Overload, count: int) -> int:
    return sum(overload.refusal("grpc") is not None for _ in range(count))


def full(**told: object) -> tuple[Overload, Moment]:
    clock = Moment()
    overload = Overload(Metrics(), clock)
    overload.ended(stream(FULL, **told), LIMITS)
    return overload, clock


def test_what_the_scheduler_said_is_repeated_until_it_is_old():
    overload, clock = full()
    refusal = overload.refusal("grpc")
    assert (refusal.reason, refusal.message, refusal.retry_after_seconds) == ("QUEUE_FULL", FULL.message, 2.0)
    code, message, _ = overload.status
    assert (code.name, message) == ("RESOURCE_EXHAUSTED", FULL.message)
    clock.now += EXPIRY_SECONDS
    assert refusals(overload, 100) == 0


def test_a_request_that_ends_lets_one_try_and_so_does_a_moment():
    overload, clock = full()
    assert refusals(overload, 100) == 100
    for _ in range(3):
        overload.ended(stream(), LIMITS)
    assert refusals(overload, 100) == 97
    clock.now += TRY_SECONDS
    assert refusals(overload, 100) == 99
    # the one that tried is refused: it goes on, and the tries are not more for that
    overload.ended(stream(FULL), LIMITS)
    assert refusals(overload, 100) == 100
    clock.now += 0.8 * EXPIRY_SECONDS
    assert refusals(overload, 100) == 99
    clock.now += 0.1 * EXPIRY_SECONDS
    assert refusals(overload, 100) == 99


def test_other_ends_and_long_prompts_say_nothing_about_the_queue():
    overload, _ = full(num_prompt=2)
    assert refusals(overload, 100) == 0, "a prompt of one token may have room where one of two had none"
    overload.ended(stream(RequestError("NUMERICAL", "x")), LIMITS)
    assert refusals(overload, 100) == 0


@pytest.mark.parametrize("door", ["grpc", "http"])
def test_the_excess_is_refused_unread_and_never_reaches_the_scheduler(web, door, monkeypatch):
    async def main():
        monkeypatch.setattr(Overload.__init__, "__defaults__", (Moment(),))
        async with web() as w:
            s = w.serving

            def reject(submit) -> None:
                finish = s.scheduler.finish(
                    submit.number, 0, "rejected", error="QUEUE_FULL", message="full", retry_after_seconds=2.0
                )
                s.scheduler.outputs(submit.number, [], [finish])

            s.scheduler.script = reject

            async def ask() -> None:
                if door == "grpc":
                    with pytest.raises(RequestError, match="full") as caught:
                        await s.client.generate(GenerateRequest(input=[70]))
                    assert (caught.value.reason, caught.value.retry_after_seconds) == ("QUEUE_FULL", 2.0)
                    return
                answer = await w.complete(prompt=[70])
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
                assert answer.json()["error"]["code"] == "queue_full"
                assert answer.json()["error"]["message"] == "full"

            for _ in range(40):
                await ask()
            metrics = s.server.metrics_page.metrics
            # the clock stands still: one tries at first, and one more where a moment is said to have passed
            assert len(s.scheduler.submits) <= 2
            assert metrics._counts["early_refusals_total", ()] + len(s.scheduler.submits) == 40
            assert metrics._counts["request_rejections_total", (("reason", "QUEUE_FULL"),)] == 40
            assert metrics._counts["requests_total", (("door", door),)] == 40

    asyncio.run(main())
