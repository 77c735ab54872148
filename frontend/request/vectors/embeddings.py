"""Embeddings: the vectors of a call's inputs, cut and normalised."""

from array import array
from collections.abc import Sequence

import numpy as np

from quire.frontend.call import Call
from quire.frontend.request.served_model import ServedModel
from quire.frontend.request.vectors.vector_call import Gatherer, Vector, check_inputs, prompts
from quire.proto.api import Embeddings, EmbedRequest
from quire.proto.messages.params import ParameterError


async def embed(
    gatherer: Gatherer, model: ServedModel, request: EmbedRequest, call: Call, names: Sequence[str] = ()
) -> Embeddings:
    """The inputs' vectors. `names`: the inputs' fields for errors. Raises `ParameterError` or `RequestError`."""
    names = check_inputs(request.inputs, request.add_special_tokens, names)
    shared = gatherer.begin(model, request, call, names, ("embed",))
    size = request.dimensions
    if size is not None and not 1 <= size <= shared.facts.embedding_size:
        width = shared.facts.embedding_size
        raise ParameterError("dimensions", f"must be in [1, {width}], the width of this model's vectors; got {size}")
    # a vector that was cut has another length
    normalize = (model.normalizes or size is not None) if request.normalize is None else request.normalize
    found = await gatherer.gather(shared, prompts(shared, request.inputs, request.add_special_tokens))
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
