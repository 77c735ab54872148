"""The scheduler's answers about itself, checked by the contract alone."""

from collections import Counter
from itertools import pairwise

import numpy as np
from clients import Clients
from drafts import MOST_DRAFTS
from fake_memory import demand

from quire.proto.messages.introspection import (
    BLOCK_CACHED,
    BLOCK_FENCED,
    BLOCK_FREE,
    BLOCK_OWNER,
    ExplainReply,
    MetricsReply,
    StatusReply,
)
from quire.proto.metrics.families import SCHEDULER_FAMILIES
from quire.scheduler.state.request_log import MAX_ENDED, MAX_ENTRIES


class Answers:
    """The answers of one scheduler: its counters only grow."""

    def __init__(self, clients: Clients, max_in_flight: int) -> None:
        self._clients = clients
        self._max_in_flight = max_in_flight
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def check(self, message: MetricsReply | StatusReply | ExplainReply) -> None:
        match message:
            case MetricsReply():
                self._check_metrics(message)
            case StatusReply():
                self._check_status(message)
            case ExplainReply():
                self._check_explanation(message)

    def _check_metrics(self, message: MetricsReply) -> None:
        values: dict[str, float] = Counter()
        for figure in message.figures:
            described = SCHEDULER_FAMILIES[figure.name]
            key = figure.name, figure.labels
            demand(tuple(label for label, _ in figure.labels) == described.labels, f"labels of {figure}")
            demand(figure.value >= 0, f"{figure} is negative")
            if described.kind == "counter":
                demand(figure.value >= self._counters.get(key, 0), f"{figure} went down")
                self._counters[key] = figure.value
            values[figure.name] += figure.value
        for one in message.distributions:
            demand(SCHEDULER_FAMILIES[one.name].kind == "histogram", f"{one.name} is no histogram")
            demand(len(one.counts) == len(one.bounds) + 1 and list(one.bounds) == sorted(one.bounds), f"{one}")
        steps = next(one for one in message.distributions if one.name == "step_tokens")
        demand(sum(steps.counts) == values["scheduler_steps_total"], f"steps {steps.counts}")
        demand(values["kv_usage_ratio"] <= 1 and values["kv_waste_ratio"] <= 1, f"ratios {values}")

    def _check_status(self, message: StatusReply) -> None:
        load, outputs = message.load, message.outputs
        states = [output.state for output in outputs]
        demand(states == sorted(states), "a waiting output before a running one")
        demand(states.count("running") == load.num_running, f"{load.num_running} run, {states} are listed")
        demand(states.count("waiting") == load.num_waiting, f"{load.num_waiting} wait, {states} are listed")
        for one, next_one in pairwise(outputs):
            in_order = one.state != next_one.state or one.priority <= next_one.priority
            demand(in_order, f"{one} before {next_one}")
        for output in outputs:
            in_flight = self._max_in_flight * (1 + MOST_DRAFTS)
            demand(output.num_scheduled <= output.num_tokens + in_flight, f"{output}")
            demand(output.num_tokens <= output.num_prompt + output.max_tokens, f"{output}")
        codes = Counter(np.frombuffer(message.blocks, "<u2").tolist())
        demand(sum(codes.values()) == load.num_blocks, f"{sum(codes.values())} of {load.num_blocks} blocks")
        demand(codes[BLOCK_FREE] + codes[BLOCK_CACHED] == load.free_blocks, f"free blocks {codes}")
        demand(codes[BLOCK_FENCED] == load.fenced_blocks, f"fenced blocks {codes}")
        for code, count in codes.items():
            if code >= BLOCK_OWNER:
                demand(count <= outputs[code - BLOCK_OWNER].num_blocks, f"{count} blocks of {outputs[code - 16]}")
        steps = [record.step for record in message.steps]
        in_row = all(after == before + 1 for before, after in pairwise(steps))
        demand(in_row and (not load.step or steps[-1:] <= [load.step]), f"steps {steps[-9:]} of {load.step}")

    def _check_explanation(self, message: ExplainReply) -> None:
        live = [request for request in self._clients.live.values() if request.submit.label == message.label]
        demand(message.stories or not live, f"{message.label} lives, and nobody knows it")
        demand(len(message.stories) <= MAX_ENDED + sum(len(request.outputs) for request in live), "too many stories")
        for story in message.stories:
            seconds = [moment.seconds for moment in story.moments]
            demand(len(seconds) <= MAX_ENTRIES + 1, f"{len(seconds)} moments")
            demand(seconds == sorted(seconds) and min(seconds) >= 0, f"moments out of order: {story}")
            demand(story.moments[0].what == "queued", f"begins with {story.moments[0]}")
            is_over = story.moments[-1].what == "finished"
            demand(is_over == (story.state == "finished"), f"{story.state} ends with {story.moments[-1]}")
            preempted = sum(moment.what == "preempted" for moment in story.moments)
            demand(preempted <= story.usage.num_preemptions, f"{preempted} preemptions logged of {story.usage}")
            demand(story.ahead == 0 or story.state == "waiting", f"{story.ahead} are before {story.state}")
