"""Protobuf messages to values of `api` and back: the only code that knows both."""

from quire.proto.grpc_map.contents import (
    check_contents as check_contents,
)
from quire.proto.grpc_map.conversation import (
    chat as chat,
)
from quire.proto.grpc_map.conversation import (
    chat_message as chat_message,
)
from quire.proto.grpc_map.engine import (
    explanation as explanation,
)
from quire.proto.grpc_map.engine import (
    explanation_message as explanation_message,
)
from quire.proto.grpc_map.engine import (
    load as load,
)
from quire.proto.grpc_map.engine import (
    load_message as load_message,
)
from quire.proto.grpc_map.engine import (
    models as models,
)
from quire.proto.grpc_map.engine import (
    models_message as models_message,
)
from quire.proto.grpc_map.engine import (
    server_info as server_info,
)
from quire.proto.grpc_map.engine import (
    server_info_message as server_info_message,
)
from quire.proto.grpc_map.engine import (
    status as status,
)
from quire.proto.grpc_map.engine import (
    status_message as status_message,
)
from quire.proto.grpc_map.events import (
    classifications as classifications,
)
from quire.proto.grpc_map.events import (
    classifications_bytes as classifications_bytes,
)
from quire.proto.grpc_map.events import (
    embeddings as embeddings,
)
from quire.proto.grpc_map.events import (
    embeddings_message as embeddings_message,
)
from quire.proto.grpc_map.events import (
    event as event,
)
from quire.proto.grpc_map.events import (
    event_message as event_message,
)
from quire.proto.grpc_map.events import (
    generation as generation,
)
from quire.proto.grpc_map.events import (
    generation_message as generation_message,
)
from quire.proto.grpc_map.events import (
    scores as scores,
)
from quire.proto.grpc_map.events import (
    scores_message as scores_message,
)
from quire.proto.grpc_map.events import (
    tokens as tokens,
)
from quire.proto.grpc_map.events import (
    tokens_bytes as tokens_bytes,
)
from quire.proto.grpc_map.requests import (
    classify_request as classify_request,
)
from quire.proto.grpc_map.requests import (
    classify_request_message as classify_request_message,
)
from quire.proto.grpc_map.requests import (
    embed_request as embed_request,
)
from quire.proto.grpc_map.requests import (
    embed_request_message as embed_request_message,
)
from quire.proto.grpc_map.requests import (
    generate_request as generate_request,
)
from quire.proto.grpc_map.requests import (
    generate_request_message as generate_request_message,
)
from quire.proto.grpc_map.requests import (
    score_request as score_request,
)
from quire.proto.grpc_map.requests import (
    score_request_message as score_request_message,
)
from quire.proto.grpc_map.requests import (
    structured as structured,
)
from quire.proto.grpc_map.requests import (
    structured_message as structured_message,
)
