"""The scheduler's metrics, as a metrics page would show them."""

import msgspec
import pytest

from quire.proto.messages.introspection import Figure, MetricsQuery
from quire.proto.messages.media import MediaFacts
from quire.proto.messages.plans import StepResult
from quire.proto.metrics.families import SCHEDULER_FAMILIES
from quire.proto.metrics.histogram import Histogram
from quire.proto.transport.wire import ints
from quire.scheduler.core.step_log import MAX_RECORDS
from quire.scheduler.state.events import StepDone


def ask(e, *process_metrics):
    answer = e.ask(MetricsQuery(5), *process_metrics)
    assert answer.query == 5
    return answer


def values(e):
    return {(one.name, *(text for _, text in one.labels)): one.value for one in ask(e).figures}


def histogram(e, name):
    return next(one for one in ask(e).distributions if one.name == name)


def test_every_figure_is_described_with_its_labels(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, media=MediaFacts(("image",), 4, 8, 16)))
    e.submit(1, 30)
    e.settle()
    metrics = ask(e, Figure("frontends_connected", 2))
    names = {one.name for one in metrics.figures} | {one.name for one in metrics.distributions}
    for one in metrics.figures:
        assert tuple(label for label, _ in one.labels) == SCHEDULER_FAMILIES[one.name].labels
        assert SCHEDULER_FAMILIES[one.name].kind == ("counter" if one.name.endswith("_total") else "gauge")
    assert all(SCHEDULER_FAMILIES[one.name].kind == "histogram" for one in metrics.distributions)
    of_the_loop = {
        "bad_frames_total",
        "startup_phase_seconds",
        "scheduler_resident_memory_bytes",
        "device_memory_bytes",
        "expert_tokens_total",
        "expert_imbalance_ratio",
        "expert_rank_imbalance_ratio",
    }
    assert names == set(SCHEDULER_FAMILIES) - of_the_loop


def test_tokens_are_counted_by_kind_and_a_prefix_hit_once(engine):
    e = engine()
    e.submit(1, 33, max_tokens=3)
    e.settle()
    e.submit(2, 33, max_tokens=3)
    e.settle()
    metrics = values(e)
    assert metrics["tokens_total", "prompt"] == 66
    assert metrics["tokens_total", "cached"] == 32
    assert metrics["tokens_total", "generated"] == 6
    assert (metrics["prefix_queries_tokens_total",], metrics["prefix_hits_tokens_total",]) == (66, 32)


def test_forked_outputs_count_their_prompt_once(engine):
    e = engine()
    e.submit(1, 10, n=3, max_tokens=2)
    e.settle()
    metrics = values(e)
    assert (metrics["tokens_total", "prompt"], metrics["tokens_total", "generated"]) == (10, 6)


def test_blocks_are_told_by_state_and_sum_up_to_the_pool(engine):
    e = engine()
    e.submit(1, 20)
    e.settle()
    e.submit(2, 18, max_tokens=9)
    e.step()
    metrics = values(e)
    states = {state: metrics["kv_blocks", state] for state in ("free", "cached", "fenced", "used")}
    assert sum(states.values()) == e.facts.num_blocks
    assert states["used"] == e.core.group_epoch.running.at(int(e.plans[0].rows[0][0])).num_blocks
    assert metrics["kv_usage_ratio",] == pytest.approx((states["used"] + states["fenced"]) / e.facts.num_blocks)
    assert 0 <= metrics["kv_waste_ratio",] < 1


def test_the_state_is_one_series_of_each_word(engine):
    e = engine()
    metrics = values(e)
    assert metrics["engine_state", "ready"] == 1
    assert sum(value for key, value in metrics.items() if key[0] == "engine_state") == 1


def test_a_step_is_split_into_its_parts(engine):
    e = engine()
    e.submit(1, 10, max_tokens=3)
    e.now += 2.0  # an output lives, and nothing is in flight
    plan = e.plan()
    e.core.on_sent(e.now + 0.25, 0.25, 0.125)
    e.plans.popleft()
    e.now += 1.0
    e.handle(StepDone(StepResult(1, 1, ints(plan.drawn), device_seconds=0.5, host_seconds=0.0625)))
    metrics = values(e)
    parts = {part: metrics["step_part_seconds_total", part] for part in ("schedule", "send", "device", "host", "idle")}
    assert parts == {"schedule": 0.25, "send": 0.125, "device": 0.5, "host": 0.0625, "idle": 2.25}
    assert metrics["scheduler_steps_total",] == 1
    assert histogram(e, "step_seconds").sum == 0.75  # from its sending to its result
    assert histogram(e, "step_decodes").sum == 0
    assert histogram(e, "step_tokens").sum == 10
    assert histogram(e, "queue_seconds").sum == 2.0
    assert metrics["prefill_tokens_per_second",] == pytest.approx(10 / 0.75)


def test_an_engine_without_work_is_not_idle(engine):
    e = engine()
    e.submit(1, 5, max_tokens=1)
    e.settle()
    before = values(e)["step_part_seconds_total", "idle"]
    e.now += 1000.0
    e.submit(2, 5, max_tokens=1)
    e.settle()
    assert values(e)["step_part_seconds_total", "idle"] == before


def test_backlog_is_what_waits_over_the_measured_rate_less_the_usual_hits(engine):
    e = engine(max_num_seqs=1)
    assert ("backlog_seconds",) not in values(e)  # nothing was measured yet
    e.submit(1, 32, max_tokens=200)
    e.step()
    e.submit(2, list(range(500, 540)))
    metrics = values(e)
    assert metrics["waiting_tokens",] == 40
    assert metrics["backlog_seconds",] == pytest.approx(40 / metrics["prefill_tokens_per_second",])
    e.core.counters.cached_share = 0.25
    assert values(e)["backlog_seconds",] == pytest.approx(30 / metrics["prefill_tokens_per_second",])


def test_preemptions_and_restarts_are_counted_and_counters_outlive_the_group(engine, facts):
    e = engine()
    e.submit(1, 5, max_tokens=20)
    e.step()
    e.start()
    e.settle()
    metrics = values(e)
    assert metrics["restarts_total",] == 1
    assert metrics["epoch",] == 2
    assert metrics["tokens_total", "generated"] == 20


def test_records_are_bounded_and_start_again_with_an_epoch(engine):
    e = engine(facts=None)
    for number in range(1, 9):
        e.submit(number, 3, max_tokens=200)
        e.settle()
    assert e.num_steps > MAX_RECORDS
    records = e.core.step_log.records(-1)
    assert len(records) == MAX_RECORDS
    assert records[-1].step == e.num_steps
    assert [record.step for record in e.core.step_log.records(e.num_steps - 2)] == [e.num_steps - 1, e.num_steps]
    e.start()
    assert e.core.step_log.records(-1) == ()


def test_a_histogram_counts_a_value_at_its_bound_and_beyond_the_last():
    one = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        one.add(value)
    assert one.distribution("x").counts == (2, 2, 1)
    assert one.distribution("x").sum == 8.0
