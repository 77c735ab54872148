"""Rates of the present from step records: tokens and steps per second, and where the time of a step goes."""

from collections.abc import Iterable

import msgspec

from quire.proto.messages.introspection import StepRecord

WINDOW_SECONDS = 5.0


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of the last `WINDOW_SECONDS`, or less if the engine has not run so long; all 0 where no step ended."""

    steps_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0
    """Tokens drawn by outputs that were running already; the first token of an output comes with its prefill."""
    prefill_tokens_per_second: float = 0.0
    rows_per_step: float = 0.0
    schedule_seconds: float = 0.0
    """This and the next ones: mean of one step."""
    send_seconds: float = 0.0
    device_seconds: float = 0.0
    host_seconds: float = 0.0
    idle_seconds: float = 0.0


def rates(steps: Iterable[StepRecord], now: float) -> Rates:
    """`now` is of the clock of the records; older records than the window are passed over."""
    known = list(steps)
    recent = [step for step in known if step.at > now - WINDOW_SECONDS]
    if not recent:
        return Rates()
    # the ring may reach back less far than the window; the first step's own time is then not covered
    seconds = WINDOW_SECONDS if len(recent) < len(known) else now - recent[0].at
    counted = recent if len(recent) < len(known) else recent[1:]
    if not counted or seconds <= 0:
        return Rates()
    parts = ("schedule_seconds", "send_seconds", "device_seconds", "host_seconds", "idle_seconds")
    means = {part: sum(getattr(step, part) for step in counted) / len(counted) for part in parts}
    return Rates(
        steps_per_second=len(counted) / seconds,
        decode_tokens_per_second=sum(step.num_decodes for step in counted) / seconds,
        prefill_tokens_per_second=sum(step.num_prefill_tokens for step in counted) / seconds,
        rows_per_step=sum(step.num_decodes + step.num_prefills for step in counted) / len(counted),
        **means,
    )
