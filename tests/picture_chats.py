"""Chats with pictures and videos wherever they may stand, as every door and the reference take them, and answers of an
engine. A chat is a list of texts, images, and lists of images: a video's frames."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from noise_pictures import data_url, picture, png
from parts.recorded import recorded

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, ImagePart, TextPart, VideoPart

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
KINDS = {str: "text", list: "video"}


def messages(content):
    """(the chat as transformers takes it, its pictures, its videos)"""
    kinds = [KINDS.get(type(one), "image") for one in content]
    parts = [
        {"type": kind, **({"text": one} if kind == "text" else {})} for kind, one in zip(kinds, content, strict=True)
    ]
    images, videos = (
        [one for kind, one in zip(kinds, content, strict=True) if kind == wanted] for wanted in ("image", "video")
    )
    return [{"role": "user", "content": parts}], images, videos


def openai_content(content):
    """As OpenAI's door takes it: what is text alone as a text."""
    if len(content) == 1 and isinstance(content[0], str):
        return content[0]
    return [
        {"type": "text", "text": one}
        if isinstance(one, str)
        else {"type": "image_url", "image_url": {"url": data_url(one)}}
        for one in content
    ]


def part(one):
    if isinstance(one, list):
        return VideoPart(frames=tuple(map(png, one)))
    return TextPart(one) if isinstance(one, str) else ImagePart(data=png(one))


def request(content, max_tokens=NUM_TOKENS, **more):
    chat = Chat([ChatMessage("user", [part(one) for one in content])])
    return GenerateRequest(input=chat, temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def answer(engine, content):
    """The prompt's tokens in number, those of the answer, and how often it was preempted."""
    tokens, usage = [], None
    for event in engine.client.stream(request(content)):
        if isinstance(event, Delta):
            tokens += event.token_ids
        elif isinstance(event, Finished):
            usage = event.usage
    return usage.prompt_tokens, tokens, usage.num_preemptions


def answer_all(engine, chats, expected, is_preempted=False):
    """All chats at once, twice, the second time out of the cache; where some are to be preempted, until one was: on a
    busy machine they may not meet. Holds their answers against [prompt's tokens, those of the answer] of each.

    Returns how often they were preempted.
    """
    num_preemptions = 0
    with ThreadPoolExecutor(len(chats)) as pool:
        for turn in range(MOST_TURNS):
            if turn > 1 and (num_preemptions or not is_preempted):
                break
            answers = dict(zip(chats, pool.map(lambda name: answer(engine, chats[name]), chats), strict=True))
            assert {name: list(found[:2]) for name, found in answers.items()} == expected
            num_preemptions += sum(found[2] for found in answers.values())
    return num_preemptions


def expected_of(folder, library, chats):
    """Chat -> [the number of its prompt's tokens, the tokens that follow], by the `library`'s reading of the folder:
    `library(folder)` has `prompt` and `greedy` of ids and images, or `inputs` (`watched`, with videos) and `greedy`."""

    def compute():
        reference = library(folder)
        return [_greedy(reference, *messages(content)) for content in chats.values()]

    files = [path.read_text() for path in sorted(folder.iterdir()) if path.suffix in (".json", ".jinja")]
    made_of = [library.__module__, folder, files, in_numbers(list(chats.values())), NUM_TOKENS]
    return dict(zip(chats, recorded("pictures", made_of, compute), strict=True))


def in_numbers(content):
    """As a record describes it: pictures as arrays."""
    if isinstance(content, list):
        return [in_numbers(one) for one in content]
    return content if isinstance(content, str) else np.asarray(content)


def _greedy(reference, asked, images, videos):
    if hasattr(reference, "prompt"):
        ids, _ = reference.prompt(asked, images)
        return [len(ids), reference.greedy(ids, images, NUM_TOKENS)]
    read = reference.watched if videos and hasattr(reference, "watched") else reference.inputs
    inputs = read(asked, images, videos) if videos else read(asked, images)
    return [inputs["input_ids"].shape[1], reference.greedy(inputs, NUM_TOKENS)]
