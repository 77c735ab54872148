"""What a newcomer does first: serve the model that comes with quire, paste the printed example, ask for JSON."""

import json
from pathlib import Path

import pytest

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, Started

MODEL = Path(__file__).parents[2] / "deploy" / "model"
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def engine(serve):
    """Started as a newcomer starts it: every process imports for itself."""
    return serve("--frontends", "2", fresh=True)


def test_the_start_says_what_was_composed_and_what_fits(engine):
    sizes = ("5.18 M parameters, generate", "memory: weights .* KV cache", r"KV cache: \d+ blocks of 16 tokens")
    for line in (*sizes, "page: http"):
        engine.wait_for_line(line)
    engine.wait_for_line(r"maximum concurrency for 4096 tokens: [\d.]+x")


def test_the_embedded_model_answers_as_transformers_does(engine):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    network = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    prompt = "class Queue:\n    def __init__(self"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    expected = network.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=64, min_new_tokens=64,
        eos_token_id=None, pad_token_id=0,
    )[0, ids.shape[1] :].tolist()  # fmt: skip
    asked = GenerateRequest(input=prompt, temperature=0, max_tokens=64, ignore_eos=True, return_prompt_token_ids=True)
    made = engine.client.generate(asked)
    assert list(made.prompt_token_ids) == ids[0].tolist()
    assert list(made.outputs[0].token_ids) == expected
    assert made.outputs[0].text == tokenizer.decode(expected, skip_special_tokens=True)


def test_a_chat_is_rendered_as_transformers_renders_it(engine):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    messages = [{"role": "user", "content": "Return the last item of a list."}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    chat = Chat([ChatMessage("user", "Return the last item of a list.")])
    assert list(engine.client.tokenize(chat).token_ids) == list(expected)
    events = list(engine.client.stream(GenerateRequest(input=chat, max_tokens=32, seed=1)))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert sum(len(event.token_ids) for event in events if isinstance(event, Delta)) <= 32


def test_the_printed_command_streams_to_the_terminal(quire, engine):
    made = quire("generate", "import os\n", "--max-tokens", "16", "--temperature", "0", "--target", engine.target)
    assert made.returncode == 0, made.stderr
    asked = GenerateRequest(input="import os\n", max_tokens=16, temperature=0)
    assert engine.client.generate(asked).outputs[0].text in made.stdout


def test_an_answer_as_json_is_one_object(quire, engine):
    made = quire("generate", "x = ", "--max-tokens", "4", "--seed", "3", "--json", "--target", engine.target)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout.splitlines()[-1])


def test_frontend_and_scheduler_stay_small(engine):
    for pid in (*engine.pids("frontend"), *engine.pids("scheduler")):
        status = Path(f"/proc/{pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
        assert resident < 250 * MEGABYTE


def test_doctor_accepts_the_embedded_model_and_names_each_kernel(quire, engine):
    made = quire("doctor")
    assert made.returncode == 0, made.stderr
    for word in ("torch", "cores", "paged_attention", "refused: nothing"):
        assert word in made.stdout


def test_the_benchmark_of_a_served_model_counts_every_token(quire, engine):
    made = quire(
        "bench", "serve", "--target", engine.target, "--concurrency", "4", "--num-prompts", "8", "--input-len", "32",
        "--output-len", "8", "--json",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    figures = json.loads(made.stdout.splitlines()[-1])
    assert figures["errors"] in (0, {})
    assert figures["ttft_ms_p50"] > 0


def test_a_client_that_has_no_contract_asks_for_it_and_streams(engine):
    import grpc
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(engine.target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"quire.v1.Inference", "quire.v1.Control", "grpc.health.v1.Health"} <= set(database.get_services())
        method = DescriptorPool(database).FindServiceByName("quire.v1.Inference").methods_by_name["Stream"]
        asked = GetMessageClass(method.input_type)(prompt="import os\n", max_tokens=4, temperature=0)
        call = channel.unary_stream(
            "/quire.v1.Inference/Stream",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        events = list(call(asked))
    assert events[0].WhichOneof("event") == "started"
    assert sum(len(event.delta.token_ids) for event in events) == 4
    assert events[-1].finished.usage.completion_tokens == 4
