"""Numbers of labels: what a model's head says of each input."""

from collections.abc import Sequence

from quire.frontend.call import Call
from quire.frontend.request.served_model import ServedModel
from quire.frontend.request.vectors.activation import activated
from quire.frontend.request.vectors.vector_call import Gatherer, check_inputs, prompts
from quire.proto.api import Classifications, ClassifyRequest
from quire.proto.messages.message import Task

TASKS: tuple[Task, ...] = ("classify", "score", "reward")


async def classify(
    gatherer: Gatherer, model: ServedModel, request: ClassifyRequest, call: Call, names: Sequence[str] = ()
) -> Classifications:
    """Numbers of the inputs' labels. `names`: the inputs' fields for errors.

    Raises `ParameterError` or `RequestError`.
    """
    names = check_inputs(request.inputs, request.add_special_tokens, names)
    shared = gatherer.begin(model, request, call, names, TASKS)
    found = await gatherer.gather(shared, prompts(shared, request.inputs, request.add_special_tokens))
    head = shared.facts.head
    assert head is not None
    kind = "none" if request.use_activation is False else head.activation
    numbers = [activated(one.vector, kind).tolist() for one in found]
    return Classifications(shared.label, shared.name, head.labels, numbers, sum(one.num_tokens for one in found))
