"""Embeddings: the vectors of a call's inputs, cut and normalised."""

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quire.frontend.call import Call
from quire.frontend.request.served_model import ServedModel
from quire.frontend.request.vectors.vector_call import Gatherer, Vector, check_count
from quire.frontend.text.pair_template import Pair
from quire.proto.api import Embeddings, EmbedRequest
from quire.proto.messages.params import ParameterError


async def embed(
    gatherer: Gatherer, model: ServedModel, request: EmbedRequest, call: Call, names: Sequence[str] = ()
) -> Embeddings:
    """The inputs' vectors. `names`: the inputs' fields for errors. Raises `ParameterError` or `RequestError`."""
    check_count(names[0].partition("[")[0] if names else "inputs", len(request.inputs))
    names = names or [f"inputs[{index}]" for index in range(len(request.inputs))]
    shared = gatherer.begin(model, request, call, names, ("embed",))
    size, special = request.dimensions, request.add_special_tokens
    if special is not None and not all(isinstance(one, str) for one in request.inputs):
        raise ParameterError("add_special_tokens", "applies to texts only; leave it unset")
    shared = replace(shared, request=replace(shared.request, add_special_tokens=special))
    if size is not None and not 1 <= size <= shared.facts.embedding_size:
        width = shared.facts.embedding_size
        raise ParameterError("dimensions", f"must be in [1, {width}], the width of this model's vectors; got {size}")
    # a vector that was cut has another length
    normalize = (model.normalizes or size is not None) if request.normalize is None else request.normalize

    async def prompt(index: int) -> Pair:
        return Pair(await shared.encode(request.inputs[index], special is not False))

    found = await gatherer.gather(shared, prompt)
    vectors = [one.vector[:size] for one in found]
    if normalize:
        vectors = [normalized(vector) for vector in vectors]
    texts = [array("f", vector.tobytes()) for vector in vectors]
    return Embeddings(shared.label, shared.name, texts, sum(one.num_tokens for one in found))


def normalized(vector: Vector) -> Vector:
    """The vector scaled to length 1; zeros stay zeros."""
    length = np.linalg.norm(vector.astype(np.float64))
    result: Vector = (vector / max(length, np.finfo(np.float64).tiny)).astype(np.float32)
    return result
