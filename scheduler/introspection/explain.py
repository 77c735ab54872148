"""The story of a request, live or ended, for `ExplainReply`."""

import msgspec

from quire.proto.messages.introspection import ExplainQuery, ExplainReply, Moment, Story
from quire.scheduler.introspection.view import View
from quire.scheduler.state.sequence import Request, Sequence


def explain(question: ExplainQuery, view: View) -> ExplainReply:
    """Stories of the newest request of this label, or the named one: its live outputs, and what is kept of others."""
    ended, label, arrival = view.live_requests.ended, question.label, question.arrival
    found = [one for one in view.live_requests.registry.of_label(label) if arrival in (0, one.arrival)]
    live = max(found, key=_arrival, default=None)
    if not arrival:
        arrival = ended.newest(label) if live is None else live.arrival
    stories = ended.stories(label, arrival)
    if live is not None:
        stories += [_story(one, view) for one in live.sequences if one.state != "finished"]
    return ExplainReply(question.query, question.label, tuple(sorted(stories, key=_output_index)))


def _arrival(request: Request) -> int:
    return request.arrival


def _output_index(story: Story) -> int:
    return story.output_index


def _story(sequence: Sequence, view: View) -> Story:
    moments = sequence.log.moments()
    ahead = 0
    if sequence.state == "waiting":
        ahead = view.live_requests.waiting.num_before(sequence)
        if ahead:
            text = f"{ahead} outputs are before it in the queue; it passes longer ones if blocks suffice for both"
            seconds = view.now - sequence.request.arrived_at
            moments.append(Moment(seconds, "blocked", sequence.num_known, text))
    usage = sequence.usage(view.now)
    if sequence.state == "running" and view.group_epoch is not None:
        num_known = int(view.group_epoch.running.num_known[sequence.slot])
        usage = msgspec.structs.replace(usage, completion_tokens=num_known - usage.prompt_tokens)
    return Story(sequence.output_index, sequence.state, ahead, usage, tuple(moments))
