"""The words and structs of each route in the document: by path, and by method where a path has several."""

from typing import Any, NamedTuple

from quire.frontend.http.anthropic.messages_types import Conversation, MessageRequest
from quire.frontend.http.native.completion import CompletionBody
from quire.frontend.http.native.generate import TokensAnswer, TokensBody
from quire.frontend.http.native.infill import InfillBody
from quire.frontend.http.native.render import RenderedPrompt, RenderedText
from quire.frontend.http.native.tokens import DetokenizeBody, DetokenizeResponse, TokenizeBody, TokenizeResponse
from quire.frontend.http.ollama.chat import ChatBody
from quire.frontend.http.ollama.embed import EmbedBody
from quire.frontend.http.ollama.embed import EmbeddingsBody as OllamaEmbeddingsBody
from quire.frontend.http.ollama.generate import GenerateBody
from quire.frontend.http.ollama.models import ShowBody
from quire.frontend.http.openai.chat_types import ChatRequest
from quire.frontend.http.openai.completion_types import Completion, CompletionRequest
from quire.frontend.http.openai.embedding_types import EmbeddingList, EmbeddingsBody
from quire.frontend.http.openai.models import ModelCard, ModelList
from quire.frontend.http.openai.responses.types import InputTokensRequest, ResponseRequest
from quire.frontend.http.score.classify import CLASSIFY, ClassifyBody, ClassList
from quire.frontend.http.score.pooling import PooledList, PoolingBody
from quire.frontend.http.score.types import RankedByText, Ranking, RerankBody, ScoreBody, ScoreList

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"


class Words(NamedTuple):
    """A route in the document."""

    summary: str
    body: Any = None
    """The type that is read; None: it takes no body."""
    answer: Any = None
    """The type that is written; None: an object that this document does not describe."""
    stream: str = ""
    """The media type of the answer to `stream`; empty: it does not stream."""


_RERANK = Words("Documents by their likeness to a query, best first", RerankBody, Ranking | list[RankedByText])
_SCORE = Words("Cosines of one text with many, or of two lists pair by pair", ScoreBody, ScoreList)
_ABSENT = "Refused: this server serves the model that it was started with"

ROUTES = {
    "/": Words("The status page"),
    "/docs": Words("This document as a page"),
    "/docs/api.md": Words("How to call this server, as text"),
    "/docs/metrics.md": Words("What is measured, as text"),
    "/openapi.json": Words("This document"),
    "/health": Words("200 once the engine was ready, and while it works or starts again by itself"),
    "/v1/health": Words("The same as /health"),
    "/live": Words("200 unless a restart from outside would help"),
    "/ready": Words("200 while a new request should come here"),
    "/ping": Words("The same as /health"),
    "/version": Words("The server's version"),
    "/load": Words("The number of requests open in this process"),
    "/metrics": Words("Metrics for Prometheus"),
    "/v1/models": Words("Served names and adapters", answer=ModelList),
    "/v1/models/{name}": Words("One served name", answer=ModelCard),
    "/v1/completions": Words("Text that continues a prompt", CompletionRequest, Completion, EVENTS),
    "/v1/completions/render": Words("Prompts as token ids", CompletionRequest, list[RenderedPrompt]),
    "/v1/chat/completions": Words("The next turn of a chat", ChatRequest, stream=EVENTS),
    "/v1/chat/completions/render": Words("A chat as text and token ids", ChatRequest, RenderedPrompt),
    "/apply-template": Words("A chat as its template writes it", ChatRequest, RenderedText),
    "/inference/v1/generate": Words("Token ids that continue token ids", TokensBody, TokensAnswer, EVENTS),
    "/completion": Words("Text that continues a prompt, in llama-server's shape", CompletionBody, stream=EVENTS),
    "/infill": Words("Text between a prefix and a suffix", InfillBody, stream=EVENTS),
    "/v1/responses": Words("A response of OpenAI's newer API", ResponseRequest, stream=EVENTS),
    "/v1/responses/input_tokens": Words("The number of tokens of a response's input", InputTokensRequest),
    "/v1/responses/compact": Words("Refused: conversations are not compacted here"),
    "GET /v1/responses/{id}": Words("A stored response"),
    "DELETE /v1/responses/{id}": Words("Forget a stored response"),
    "/v1/responses/{id}/cancel": Words("End a response that is made in the background"),
    "/v1/responses/{id}/input_items": Words("The input of a stored response"),
    "/v1/messages": Words("The next turn of a chat, in Anthropic's shape", MessageRequest, stream=EVENTS),
    "/v1/messages/count_tokens": Words("The number of tokens of a chat", Conversation),
    "/tokenize": Words("A text or a chat as token ids", TokenizeBody, TokenizeResponse),
    "/detokenize": Words("Token ids as text", DetokenizeBody, DetokenizeResponse),
    "/v1/requests/{label}": Words("The state and history of a request; needs the admin key"),
    "/v1/requests": Words("The outputs that ended lately; needs the admin key"),
    "/v1/prefixes": Words("The tree of cached prefixes; needs the admin key"),
    "/v1/status": Words("The state of the whole engine; needs the admin key"),
    "/v1/embeddings": Words("Vectors of texts, token ids or a chat", EmbeddingsBody, EmbeddingList),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"), _RERANK),
    **dict.fromkeys(("/score", "/v1/score"), _SCORE),
    **dict.fromkeys(CLASSIFY, Words("Numbers of labels, in vLLM's shape", ClassifyBody, ClassList)),
    "/pooling": Words("Vectors or numbers of labels, in vLLM's shape", PoolingBody, PooledList),
    "/props": Words("Facts of the server, in llama-server's shape"),
    "/slots": Words("Running outputs, in llama-server's shape; needs the admin key"),
    "/slots/{slot}": Words("Refused: slots are not saved, restored or erased"),
    "/api/version": Words("The version, in Ollama's shape"),
    "/api/tags": Words("Served names, in Ollama's shape"),
    "/api/ps": Words("Served names, in Ollama's shape"),
    "/api/show": Words("Facts of a model, in Ollama's shape", ShowBody),
    "/api/chat": Words("The next turn of a chat, in Ollama's shape", ChatBody, stream=LINES),
    "/api/generate": Words("Text that continues a prompt, in Ollama's shape", GenerateBody, stream=LINES),
    "/api/embed": Words("Vectors of texts, in Ollama's shape", EmbedBody),
    "/api/embeddings": Words("The vector of one text, in Ollama's shape", OllamaEmbeddingsBody),
    **dict.fromkeys([f"/api/{verb}" for verb in ("pull", "push", "create", "copy", "delete")], Words(_ABSENT)),
    "/api/blobs/{digest}": Words(_ABSENT),
}
"""Second paths of a route have its words; files of pages need none."""


def words_of(method: str, path: str) -> Words | None:
    """The words of a route; None where the table has none."""
    for name in (f"{method} {path}", path):
        found = ROUTES.get(name) or ROUTES.get(name.replace(path, f"/v1{path}")) or ROUTES.get(path.removeprefix("/v1"))
        if found is not None:
            return found
    return None
