"""What a client asks and what it gets, without any protocol: shared by the frontends' doors and the Python client."""

from quire.proto.api.chat import (
    Chat as Chat,
)
from quire.proto.api.chat import (
    ChatMessage as ChatMessage,
)
from quire.proto.api.chat import (
    Tool as Tool,
)
from quire.proto.api.chat import (
    ToolCall as ToolCall,
)
from quire.proto.api.chat import (
    ToolCallDelta as ToolCallDelta,
)
from quire.proto.api.embedding import (
    Embeddings as Embeddings,
)
from quire.proto.api.embedding import (
    EmbedRequest as EmbedRequest,
)
from quire.proto.api.embedding import (
    ScoreRequest as ScoreRequest,
)
from quire.proto.api.embedding import (
    Scores as Scores,
)
from quire.proto.api.engine import (
    EngineLoad as EngineLoad,
)
from quire.proto.api.engine import (
    EngineStatus as EngineStatus,
)
from quire.proto.api.engine import (
    Explained as Explained,
)
from quire.proto.api.engine import (
    Model as Model,
)
from quire.proto.api.engine import (
    Moment as Moment,
)
from quire.proto.api.engine import (
    ServerInfo as ServerInfo,
)
from quire.proto.api.engine import (
    Story as Story,
)
from quire.proto.api.event import (
    Candidate as Candidate,
)
from quire.proto.api.event import (
    Delta as Delta,
)
from quire.proto.api.event import (
    Event as Event,
)
from quire.proto.api.event import (
    Finished as Finished,
)
from quire.proto.api.event import (
    FinishWord as FinishWord,
)
from quire.proto.api.event import (
    Generation as Generation,
)
from quire.proto.api.event import (
    Output as Output,
)
from quire.proto.api.event import (
    PromptLogprobs as PromptLogprobs,
)
from quire.proto.api.event import (
    Started as Started,
)
from quire.proto.api.event import (
    TokenLogprobs as TokenLogprobs,
)
from quire.proto.api.event import (
    Tokens as Tokens,
)
from quire.proto.api.failure import (
    ErrorDetail as ErrorDetail,
)
from quire.proto.api.failure import (
    RequestError as RequestError,
)
from quire.proto.api.request import (
    GenerateRequest as GenerateRequest,
)
