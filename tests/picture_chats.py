"""Chats with pictures wherever they may stand, as every door and the reference take them, and answers of an engine."""

from concurrent.futures import ThreadPoolExecutor

from noise_pictures import data_url, picture, png

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, ImagePart, TextPart

NUM_TOKENS = 24
A, B, C = picture(96, 64, 0), picture(150, 70, 1), picture(40, 200, 2)
CHATS = {
    "first": [A, "what do you see"],
    "last": ["a quire is", B],
    "adjacent": [A, B, C, "and in that one"],
    "repeated": [A, "the", A, "pages", A],
    "text": ["a quire is a gathering of pages"],
    "other": [B, "what do you see"],
    "many": ["in", C, "this", B, "picture", A, "what"],
}
MOST_TURNS = 20


def messages(name):
    """(the chat as transformers takes it, its pictures)"""
    content = CHATS[name]
    parts = [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in content]
    return [{"role": "user", "content": parts}], [one for one in content if not isinstance(one, str)]


def openai_parts(name):
    return [
        {"type": "text", "text": one}
        if isinstance(one, str)
        else {"type": "image_url", "image_url": {"url": data_url(one)}}
        for one in CHATS[name]
    ]


def chat(name):
    parts = [TextPart(one) if isinstance(one, str) else ImagePart(data=png(one)) for one in CHATS[name]]
    return Chat([ChatMessage("user", parts)])


def request(name, max_tokens=NUM_TOKENS, **more):
    return GenerateRequest(input=chat(name), temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def answer(engine, name):
    """The prompt's tokens in number, those of the answer, and how often it was preempted."""
    tokens, usage = [], None
    for event in engine.client.stream(request(name)):
        if isinstance(event, Delta):
            tokens += event.token_ids
        elif isinstance(event, Finished):
            usage = event.usage
    return usage.prompt_tokens, tokens, usage.num_preemptions


def answer_all(engine, expected, is_preempted):
    """All chats at once, twice, the second time out of the cache; where some are to be preempted, until one was: on a
    busy machine they may not meet. Holds their answers against (prompt's tokens, those of the answer) of each.

    Returns how often they were preempted.
    """
    num_preemptions = 0
    with ThreadPoolExecutor(len(CHATS)) as pool:
        for turn in range(MOST_TURNS):
            if turn > 1 and (num_preemptions or not is_preempted):
                break
            answers = dict(zip(CHATS, pool.map(lambda name: answer(engine, name), CHATS), strict=True))
            assert {name: found[:2] for name, found in answers.items()} == expected
            num_preemptions += sum(found[2] for found in answers.values())
    return num_preemptions
