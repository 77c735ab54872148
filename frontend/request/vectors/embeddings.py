"""Embeddings: the vectors of a call's inputs, cut and normalised."""

from array import array
from collections.abc import Sequence
from contextlib import ExitStack

from quire.frontend.call import Call
from quire.frontend.request.prompt_tokenizer import PromptTokenizer
from quire.frontend.request.sentence_settings import normalized
from quire.frontend.request.served_model import ServedModel
from quire.frontend.request.vectors.input_prompts import prompts
from quire.frontend.request.vectors.text_prompts import TextPrompts
from quire.frontend.request.vectors.vector_call import Gatherer, check_inputs
from quire.proto.api import Embeddings, EmbedRequest
from quire.proto.messages.params import ParameterError


async def embed(
    gatherer: Gatherer,
    tokenizer: PromptTokenizer,
    model: ServedModel,
    request: EmbedRequest,
    call: Call,
    names: Sequence[str] = (),
) -> Embeddings:
    """The inputs' vectors. `names`: the inputs' fields for errors. Raises `ParameterError` or `RequestError`."""
    names = check_inputs(request.inputs, request.add_special_tokens, names)
    shared = gatherer.begin(model, request, call, names, ("embed",))
    size = request.dimensions
    if size is not None and not 1 <= size <= shared.facts.embedding_size:
        width = shared.facts.embedding_size
        raise ParameterError("dimensions", f"must be in [1, {width}], the width of this model's vectors; got {size}")
    settings = model.sentence
    if request.prompt_name is not None and not all(isinstance(one, str) for one in request.inputs):
        raise ParameterError("prompt_name", "is put in front of texts only; leave it unset")
    texts = TextPrompts(tokenizer, shared, settings.prompt("embed", request.prompt_name))
    with ExitStack() as files:
        prompt = prompts(tokenizer, shared, request.inputs, request.add_special_tokens, files, texts.ids)
        found = await gatherer.gather(shared, prompt)
    if size is None and request.normalize is None:
        vectors = [settings.finished(one.vector) for one in found]
    else:
        # a vector that a request cuts has another length
        normalize = settings.normalizes or size is not None if request.normalize is None else request.normalize
        vectors = [one.vector[: settings.dimensions if size is None else size] for one in found]
        vectors = [normalized(vector) for vector in vectors] if normalize else vectors
    packed = [array("f", vector.tobytes()) for vector in vectors]
    return Embeddings(shared.label, shared.name, packed, sum(one.num_tokens for one in found))
