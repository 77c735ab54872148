"""Acts of frontends: submit, abort, ask, vanish. Each ends by checking what the core must have sent at once."""

import oracle
from admission import Verdict, verdict
from clients import Key, Output, Request
from fake_memory import demand
from images import shown
from knobs import draw_submit
from simulated_engine import Engine

from quire.proto.messages.introspection import ExplainQuery, LoadQuery, MetricsQuery, StatusQuery
from quire.proto.messages.requests import Abort, AbortLabels, Submit
from quire.scheduler.state import events


class Frontends:
    """Random frontends on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clients = engine.clients
        self._knobs = engine.knobs
        self._rng = engine.rng
        self._num_requests = 0

    def burst(self) -> None:
        """Some requests at once, whose prompts begin with the same tokens, which nobody has sent before."""
        longest = max(1, self._knobs.max_model_len * 3 // 4)
        prefix = [self._rng.randrange(self._knobs.vocab) for _ in range(self._rng.randint(1, longest))]
        for _ in range(self._rng.randint(2, 8)):
            self.submit(prefix)

    def submit(self, prefix: list[int] | None = None) -> None:
        if len(self._clients.live) >= self._knobs.max_live:
            return
        self._num_requests += 1
        frontend = b"frontend-%d" % self._rng.randrange(self._knobs.num_frontends)
        submit, prompt = draw_submit(
            self._rng,
            self._knobs,
            self._num_requests,
            seed=self._num_requests,
            conversations=self._clients.conversations,
            prefix=prefix,
        )
        self._send(self._request((frontend, submit.number), submit, prompt))

    def _request(self, key: Key, submit: Submit, prompt: list[int]) -> Request:
        facts = self._engine.facts
        salt = submit.cache_salt.encode()
        tenant = salt + b"\0" + submit.adapter.encode()
        engine = self._engine
        is_drained = engine.num_drained > 0
        judged = verdict(
            submit, prompt, facts, self._knobs.config, engine.state, is_drained, self._clients.live.values()
        )
        if self._knobs.images is not None:
            reasons = self._knobs.images.reasons(submit.media, len(prompt), self._knobs.config)
            judged = Verdict(judged.may | reasons, judged.must or bool(reasons))
        if judged.must:
            return Request(key, submit, prompt, salt, self._engine.now, self._num_requests, judged, _hopeless(submit.n))
        seen = shown(prompt, submit.media)
        outputs = [
            Output(oracle.reference(tenant, seen, submit.params, index, facts.vocab_size, facts.eos_token_ids))
            for index in range(submit.n)
        ]
        return Request(key, submit, prompt, salt, self._engine.now, self._num_requests, judged, outputs)

    def _send(self, request: Request) -> None:
        submit = request.submit
        self._engine.pass_time()
        request.arrival = self._engine.now
        request.deadline = self._engine.now + min(submit.timeout_seconds, self._knobs.config.max_timeout_seconds)
        self._engine.log(
            f"{request.key} submits seed={request.seed} prompt={len(request.prompt)} max={submit.params.max_tokens} "
            f"n={submit.n} priority={submit.priority} timeout={submit.timeout_seconds:.3f} {request.verdict}"
        )
        self._clients.add(request)
        self._engine.handle(events.Submitted(request.key[0], submit), at_once=True)
        if request.verdict.must:
            demand(not request.live, f"{request.key}: admitted in spite of {request.verdict.may}")

    def abort(self) -> None:
        """One frontend gives up one request or a few: wholly, or one output of each."""
        live = list(self._clients.live.values())
        if not live:
            return
        first = self._rng.choice(live)
        frontend = first.key[0]
        others = [request for request in live if request.key[0] == frontend and request is not first]
        requests = [first, *others[: self._rng.choice((0, 0, 2))]]
        index = self._rng.randrange(requests[0].submit.n) if self._rng.random() < 0.4 else -1
        reason = self._rng.choice(("client", "stop_string", "slow_reader"))
        ended = [
            output
            for request in requests
            for output in (request.outputs if index < 0 else request.outputs[index : index + 1])
        ]
        for output in ended:
            output.aborted = reason
        numbers = tuple(request.key[1] for request in requests)
        self._engine.log(f"{frontend!r} aborts {numbers} output {index} ({reason})")
        abort = events.Aborted(frontend, Abort(numbers, reason, index))
        for _ in range(self._rng.choice((1, 1, 2))):
            self._engine.handle(abort)
        demand(all(output.finish for output in ended), f"{numbers}: an abort did not end them")

    def abort_unknown(self) -> None:
        """A late abort of what ended long ago, of another frontend's number, or of no output at all."""
        frontend = b"frontend-%d" % self._rng.randrange(self._knobs.num_frontends + 1)
        number = self._rng.randrange(-1, self._num_requests + 2)
        if (frontend, number) not in self._clients.live:
            index = self._rng.choice((-1, 0, 63))
            self._engine.handle(events.Aborted(frontend, Abort((number,), output_index=index)))

    def abort_labels(self) -> None:
        labels = tuple({f"label-{self._rng.randrange(8)}": None for _ in range(2)})
        live = list(self._clients.live.values())
        counts = tuple(sum(request.submit.label == label for request in live) for label in labels)
        ended = [request for request in live if request.submit.label in labels]
        for request in ended:
            for output in request.outputs:
                output.aborted = "client"
        self._engine.log(f"labels {labels} are aborted: {counts}")
        self._engine.expected_counts = counts
        self._engine.handle(events.LabelsAborted(b"frontend-0", AbortLabels(7, labels)))
        demand(not any(request.live for request in ended), f"{labels}: an abort did not end them")

    def ask_load(self) -> None:
        self._engine.num_asked = sum(output.finish is None for r in self._clients.live.values() for output in r.outputs)
        self._engine.ask(LoadQuery(9))
        self._engine.handle(events.Tick())
        label = f"label-{self._engine.num_handled % 8}"
        for question in (MetricsQuery(9), StatusQuery(9), ExplainQuery(9, label)):
            self._engine.ask(question)

    def frontend_lost(self) -> None:
        frontend = b"frontend-%d" % self._rng.randrange(self._knobs.num_frontends)
        self._engine.log(f"{frontend!r} is lost")
        self._clients.remove(frontend)
        self._engine.handle(events.FrontendLost(frontend))

    def resubmit(self, requests: list[Request]) -> None:
        """Send a new scheduler the requests that have not ended, with what was delivered."""
        for request in requests:
            for output in request.outputs:
                output.resumed, output.deaths = len(output.delivered), 0
                if output.is_whole and self._rng.random() < 0.5:
                    output.finish = None  # all tokens had come, the word that it was the end got lost
            again = self._request(request.key, request.resubmission(self._engine.now), request.prompt)
            again.outputs, again.order = request.outputs, request.order
            self._send(again)


def _hopeless(n: int) -> list[Output]:
    """Outputs of a request that may not be admitted: nothing may come of them."""
    return [Output(oracle.Stream((), "length", -1)) for _ in range(n)]
