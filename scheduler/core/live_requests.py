"""Live requests from entry to end: the one place where an output gets its terminal event."""

from collections.abc import Iterable

import numpy as np

from quire.proto.messages.introspection import EndedOutput
from quire.proto.messages.message import AbortReason, Usage
from quire.proto.messages.params import MAX_N, FinishReason
from quire.proto.messages.requests import Finish, ModelFacts, Submit
from quire.proto.transport.wire import Int32
from quire.scheduler.core.admission import Refusal
from quire.scheduler.core.effects import Effects
from quire.scheduler.core.media.admission import placeholders
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.deadlines import Deadlines
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.registry import Registry
from quire.scheduler.state.request_log import EndedOutputs
from quire.scheduler.state.sequence import Request, Sequence
from quire.scheduler.state.waiting import Waiting


class LiveRequests:
    """The live requests, their queue, their deadlines, and the log of ended outputs."""

    def __init__(self, counters: Counters) -> None:
        self.registry = Registry()
        self.waiting = Waiting()
        self.deadlines = Deadlines()
        self.num_live = 0
        """Outputs without a terminal event."""
        self.live_since = 0.0
        """Time since which at least one output lives."""
        self.ended = EndedOutputs()
        self._counters = counters
        self._num_arrivals = 0

    def enter(self, identity: bytes, submit: Submit, prompt: Int32, resumed: list[Int32], now: float) -> Request | None:
        """Queue an admitted request. None when a resubmitted one had no output left to run."""
        ended = set(submit.finished_outputs)
        if len(ended) == submit.n:
            return None
        self._num_arrivals += 1
        request = Request(
            self.registry.frontend(identity),
            submit.number,
            submit.label,
            prompt,
            submit.params,
            arrival=self._num_arrivals,
            arrived_at=now,
            deadline=now + submit.timeout_seconds,
            priority=submit.priority,
            cache_salt=submit.cache_salt,
            adapter=submit.adapter,
            placeholders=placeholders(submit.media),
            media=submit.media,
            second_text=submit.second_text,
        )
        self.registry.add(request)
        self.deadlines.add(request)
        for index in range(submit.n):
            tokens = np.concatenate((prompt, resumed[index])) if len(resumed[index]) else prompt
            sequence = Sequence(request, index, tokens)
            request.sequences.append(sequence)
            if index in ended:
                sequence.move("finished")
                continue
            if len(tokens) > len(prompt):
                # Prompt logprobs come with the first token at the latest.
                sequence.next_prompt_logprob = len(prompt)
            if not self.num_live:
                self.live_since = now
            request.num_live += 1
            self.num_live += 1
            sequence.note(now, "queued", sequence.num_known, f"{self.waiting.num_seqs} outputs wait already")
            self.waiting.push(sequence)
        return request

    def end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        group_epoch: Epoch | None,
        effects: Effects | None,
        now: float,
        *,
        error: str = "",
        message: str = "",
        stop_token_id: int = -1,
        poisoned: bool = False,
    ) -> None:
        """Give one live output its terminal event. Without `effects` none is sent: its frontend is gone."""
        if sequence.state == "running" and group_epoch is not None:
            group_epoch.leave(sequence, keep_tokens=False, poisoned=poisoned)
            sequence.move("finished")
        else:
            sequence.move("finished")
            self.waiting.discard(sequence)
        request = sequence.request
        usage = sequence.usage(now)
        sequence.note(now, "finished", sequence.num_known, ": ".join(filter(None, (reason, error, message))))
        ended = EndedOutput(request.label, request.arrival, sequence.output_index, reason, now, usage)
        self.ended.add(ended, sequence.log)
        self._counters.num_finished += 1
        self.num_live -= 1
        request.num_live -= 1
        if not request.num_live:
            self.registry.remove(request)
            self.deadlines.discard(request)
            # No reference cycle is left behind: the loop collects garbage rarely.
            request.sequences = []
        if effects is not None:
            finish = Finish(
                request.number,
                sequence.output_index,
                reason,
                usage,
                sequence.num_known - request.num_prompt,
                stop_token_id=stop_token_id,
                error=error,
                message=message,
            )
            effects.finish(request.frontend.identity, finish)

    def give_up(
        self, sequence: Sequence, reason: AbortReason, group_epoch: Epoch | None, effects: Effects, now: float
    ) -> None:
        """End an output that its frontend has aborted."""
        if reason == "stop_string":
            self.end(sequence, "stop", group_epoch, effects, now)
        elif reason == "slow_reader":
            text = "the client read too slowly; its output was not kept any longer"
            self.end(sequence, "error", group_epoch, effects, now, error="SLOW_READER", message=text)
        else:
            self.end(sequence, "abort", group_epoch, effects, now)

    def send_back(self, sequence: Sequence, group_epoch: Epoch, now: float) -> None:
        """Put an output back into the queue: blocks or images that it shared, or what it made of them, are no good."""
        group_epoch.leave(sequence, keep_tokens=True, poisoned=True)
        sequence.move("waiting")
        sequence.was_misled = True
        sequence.num_preemptions += 1
        detail = "blocks or images that it shared with prompts under way came to nothing; it runs again without them"
        sequence.note(now, "preempted", sequence.num_known, detail)
        self.waiting.push(sequence)

    def requeue(self, sequence: Sequence, max_restarts: int, effects: Effects, now: float) -> None:
        """Put an output whose worker group died back into the queue, or end it when that happened too often."""
        sequence.clear_memory()
        sequence.move("waiting")
        sequence.num_restarts += 1
        sequence.note(now, "restarted", sequence.num_known, "its worker group died")
        self._counters.num_restarts += 1
        self.waiting.push(sequence)
        if sequence.num_restarts > max_restarts:
            text = f"the workers died {sequence.num_restarts} times while this output ran; it is not tried again"
            self.end(sequence, "error", None, effects, now, error="POISON_REQUEST", message=text)

    def end_complete(
        self, request: Request, facts: ModelFacts, group_epoch: Epoch | None, effects: Effects, now: float
    ) -> None:
        """End outputs that were delivered to their last token before a scheduler died: only their end got lost."""
        for sequence in request.sequences:
            last = int(sequence.tokens[-1])
            if sequence.state == "finished" or sequence.num_known == request.num_prompt:
                continue
            is_eos = last in facts.eos_token_ids and not request.params.ignore_eos
            if (is_eos or last in request.stop_ids) and sequence.num_known >= request.stop_from:
                self.end(sequence, "stop", group_epoch, effects, now, stop_token_id=last)
            elif sequence.num_known >= request.limit:
                self.end(sequence, "length", group_epoch, effects, now)

    def end_all(
        self,
        requests: Iterable[Request],
        reason: FinishReason,
        group_epoch: Epoch | None,
        effects: Effects | None,
        now: float,
        *,
        error: str = "",
        message: str = "",
    ) -> int:
        """End every live output of these requests. Returns how many there were."""
        live = [
            sequence for request in list(requests) for sequence in request.sequences if sequence.state != "finished"
        ]
        for sequence in live:
            self.end(sequence, reason, group_epoch, effects, now, error=error, message=message)
        return len(live)

    def refuse(self, identity: bytes, submit: Submit, refusal: Refusal, effects: Effects) -> None:
        """Give every output of a request that never entered its terminal event."""
        self._reject(identity, submit, "rejected", refusal, effects)

    def expire(self, identity: bytes, submit: Submit, effects: Effects) -> None:
        """End a request that came with no time left."""
        refusal = Refusal("", "timeout_seconds", "the time-out of the request had passed when it arrived")
        self._reject(identity, submit, "deadline", refusal, effects)

    def _reject(
        self, identity: bytes, submit: Submit, reason: FinishReason, refusal: Refusal, effects: Effects
    ) -> None:
        num_prompt = len(submit.prompt) // 4
        for index in range(min(max(submit.n, 1), MAX_N)):
            if index in submit.finished_outputs:
                continue
            resumed = len(submit.resumed[index]) // 4 if index < len(submit.resumed) else 0
            self._counters.num_rejected += 1
            finish = Finish(
                submit.number,
                index,
                reason,
                Usage(num_prompt, 0, resumed, 0.0, 0.0, 0.0),
                resumed,
                error=refusal.reason,
                field=refusal.field,
                message=refusal.message,
                retry_after_seconds=refusal.retry_after_seconds,
            )
            effects.finish(identity, finish)
