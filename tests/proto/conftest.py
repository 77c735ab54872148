"""One example of every internal message, with every field away from its default."""

import msgspec
import pytest

from quire.proto.messages import heads, introspection, media, message, plans, requests
from quire.proto.messages.params import SamplingParams, Structured
from quire.proto.transport.wire import ints

PARAMS = SamplingParams(
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    seed=-7,
    max_tokens=99,
    min_tokens=3,
    stop_token_ids=(5, 6),
    ignore_eos=True,
    logit_bias=((1, -100.0), (2, 2.5)),
    allowed_token_ids=(1, 2, 3),
    bad_words=((4,), (5, 6)),
    logprobs=2,
    logprob_token_ids=(8,),
    prompt_logprobs=1,
)
GUIDED = SamplingParams(max_tokens=99, seed=1, structured=Structured("regex", "a+", "</think>", (("<a>", "</a>"),)))
SPAN = media.MediaSpan(1, 3, (2, 2, 4), 1, 5)
FACTS = requests.ModelFacts(
    max_model_len=4096,
    vocab_size=32_000,
    eos_token_ids=(0, 2),
    num_blocks=100,
    block_sizes=(16,),
    kv_bytes=1 << 20,
    weight_bytes=1 << 21,
    device="cpu",
    dtype="float32",
    architecture="LlamaForCausalLM",
    revision="abc",
    adapters=("poet",),
    task="embed",
    embedding_size=384,
    whole_prompts=True,
    kv_dtype="float8_e4m3fn",
    quantization="int8",
    num_ranks=2,
    media=media.MediaFacts(("image",), 4, 64, 128, True),
    head=heads.HeadFacts(("no", "yes"), "softmax", True, True, 3),
    windows=(1024,),
    most_blocks=(193,),
)
LIMITS = requests.Limits(
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    max_num_queued_reqs=10,
    max_num_queued_tokens=20,
    priority_enabled=True,
    max_timeout_seconds=3600.0,
)
USAGE = message.Usage(10, 4, 20, 0.5, 0.25, 1.5, 1, 2)
ENTRY = requests.PositionLogprobs(7, -0.5, 2, (9, 7), (-0.25, -0.5), (8,), (-3.0,))
LOAD = introspection.EngineLoad("ready", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0.75)
FINISH = requests.Finish(3, 1, "error", USAGE, 20, 5, "NUMERICAL", "field", "message", 1.5)

EXAMPLES: tuple[msgspec.Struct, ...] = (
    requests.Hello("frontend", 1),
    requests.Submit(
        3,
        "label",
        ints([1, 2, 3]),
        PARAMS,
        2,
        -1,
        12.5,
        "salt",
        "poet",
        (ints([4]), ints([])),
        (1,),
        "embed",
        True,
        (media.Media(SPAN, bytes(32), "0-a", 6144),),
        2,
    ),
    requests.Abort((3, 4), "stop_string", 1),
    requests.AbortLabels(5, ("a", "b")),
    introspection.LoadQuery(6),
    introspection.MetricsQuery(7),
    introspection.StatusQuery(8, 99, False),
    introspection.ExplainQuery(9, "label", 7),
    introspection.EndedQuery(10, 1024),
    introspection.PrefixQuery(11),
    requests.FrontendBeat(),
    requests.Drain(45.0),
    requests.GroupLost(2, "killed"),
    requests.GroupFailed("three restarts"),
    requests.Welcome(1, "life", "recovering", LIMITS, FACTS, "why", 4, True),
    requests.Refused("version"),
    requests.Outputs(
        2,
        (3).to_bytes(8, "little"),
        ints([1]),
        ints([0]),
        ints([77]),
        (FINISH,),
        (requests.OutputLogprobs(3, 1, False, 0, (ENTRY,)),),
        (heads.EmbeddingVector(3, b"\0\0\x80?"),),
    ),
    requests.AbortedLabels(5, (1, 0)),
    introspection.LoadReply(6, LOAD),
    introspection.MetricsReply(
        7,
        (introspection.Figure("kv_blocks", 3.5, (("state", "free"),)),),
        (introspection.Distribution("step_seconds", (0.5, 1.0), (1, 2, 3), 4.5, (("part", "send"),)),),
    ),
    introspection.StatusReply(
        8,
        12.5,
        LOAD,
        (introspection.LiveOutput("label", 1, "running", -2, 1.5, 3, 2, 5, 4, 9, 7, 1, 6),),
        (16).to_bytes(2, "little"),
        (introspection.StepRecord(2, 3.5, 4, 5, 6, 7, 8, 0.25, 0.5, 0.75, 1.0, 1.25),),
    ),
    introspection.ExplainReply(
        9, "label", (introspection.Story(1, "waiting", 4, USAGE, (introspection.Moment(0.5, "blocked", 3, "why"),)),)
    ),
    introspection.EndedReply(10, 12.5, 2000, (introspection.EndedOutput("label", 7, 1, "length", 3.5, USAGE),)),
    introspection.PrefixReply(11, ints([0, 0, -1]), (2).to_bytes(2, "little") * 3),
    requests.SchedulerBeat(2, 1234, True),
    requests.Drained(3),
    plans.StepPlan(
        2,
        7,
        b"12345678",
        ints([1, 2]),
        ints([1, 5]),
        b"\x01\x00",
        ints([0, 0]),
        (plans.Admit(2, ints([1, 2, 3]), 3, 1, 1, GUIDED, (ints([9, 10]),), 1, (SPAN,), 2),),
        ints([4]),
        (ints([1, 2, 3]),),
        ints([5, 6]),
        (media.Encode(bytes(32), (1, 2, 4), "0-a", ints([7, 1])),),
        (media.Bind(2, 0, ints([7, 1])),),
    ),
    plans.Welcomed(2),
    plans.Stop("end"),
    plans.WorkerHello(1, 2, 0, 4),
    plans.Ready(2, 0, FACTS, plans.GroupFacts(4, 2, 2, 3), "digest", (("load", 1.5),), (("weights", 5),)),
    plans.StepResult(
        2,
        7,
        ints([5, 6]),
        ints([2]),
        (1,),
        (0,),
        (plans.RowLogprobs(0, True, 4, (ENTRY,)),),
        (0,),
        (b"\0\0\x80?",),
        0.5,
        0.25,
        0.125,
    ),
    plans.StepAck(2, 1, 7, 0.5),
    plans.ExpertTokens((1, 2), bytes(48), (0, 2)),
    plans.WorkerFailed(2, 1, 7, "out of memory"),
)


@pytest.fixture
def examples() -> dict[str, msgspec.Struct]:
    return {type(message).__name__: message for message in EXAMPLES}
