"""What workers have counted of experts, as a metrics page shows it: sums over groups, ratios of the last minute."""

import numpy as np
import pytest

from quire.proto.messages.plans import ExpertTokens
from quire.proto.metrics.families import SCHEDULER_FAMILIES
from quire.proto.transport.wire import encode, worker_decoder
from quire.scheduler.peers.expert_load import WINDOW_SECONDS, ExpertLoad


def report(counts, begins=()):
    return ExpertTokens((1, 3), np.array(counts, np.int64).tobytes(), begins)


def values(load, now):
    return {(one.name, *(text for _, text in one.labels)): one.value for one in load.figures(now)}


def test_before_the_first_report_there_is_no_figure():
    assert values(ExpertLoad(), 5.0) == {}


def test_tokens_are_summed_over_layers_and_groups():
    load = ExpertLoad()
    load.take(1, report([[1, 2, 0], [3, 0, 0]]), 1.0)
    load.take(1, report([[4, 2, 0], [3, 3, 0]]), 2.0)
    load.take(2, report([[0, 0, 5], [1, 0, 0]]), 3.0)
    sums = {expert: values(load, 3.0)["expert_tokens_total", expert] for expert in "012"}
    assert sums == {"0": 8, "1": 5, "2": 5}


def test_a_ratio_is_that_of_the_busiest_expert_in_the_last_minute():
    load = ExpertLoad()
    load.take(1, report([[9, 0, 0], [0, 0, 0]]), 1.0)
    assert values(load, 1.0)["expert_imbalance_ratio", "1"] == 3.0
    assert ("expert_imbalance_ratio", "3") not in values(load, 1.0)  # nothing was sent there
    load.take(1, report([[9, 2, 4], [1, 1, 1]]), 50.0)
    assert values(load, 1.0 + WINDOW_SECONDS)["expert_imbalance_ratio", "1"] == 2.0
    assert values(load, 1.0 + WINDOW_SECONDS)["expert_imbalance_ratio", "3"] == 1.0
    assert {name for name, *_ in values(load, 50.0 + WINDOW_SECONDS)} == {"expert_tokens_total"}


def test_ranks_that_experts_are_dealt_to_are_compared_by_what_all_of_theirs_are_sent():
    load = ExpertLoad()
    load.take(1, report([[1, 2, 9], [2, 2, 4]], (0, 2)), 1.0)
    found = values(load, 1.0)
    assert found["expert_rank_imbalance_ratio", "1"] == 1.5
    assert found["expert_rank_imbalance_ratio", "3"] == 1.0
    for one in load.figures(1.0):
        assert tuple(label for label, _ in one.labels) == SCHEDULER_FAMILIES[one.name].labels


@pytest.mark.parametrize(
    "wrong",
    [
        {"counts": bytes(40)},
        {"counts": b""},
        {"layers": ()},
        {"begins": (1, 2)},
        {"begins": (0, 3)},
        {"begins": (0, 2, 2)},
    ],
)
def test_a_report_that_cannot_be_is_no_message(wrong):
    message = report([[1, 2, 9], [2, 2, 4]], (0, 2))
    assert worker_decoder().decode(encode(message)[0]) == message
    fields = {name: getattr(message, name) for name in message.__struct_fields__} | wrong
    with pytest.raises(ValueError, match=r"counts|begins"):
        ExpertTokens(**fields)
