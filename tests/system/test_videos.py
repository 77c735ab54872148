"""Videos through real engines: tokens equal to those of transformers for every family that reads them."""

import base64
import json
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

import tiny_glm4v
import tiny_qwen2_5_vl
import tiny_qwen2_vl
import tiny_qwen3_vl
import tiny_qwen3_vl_moe
from noise_pictures import picture, png
from parts.clock import eventually
from parts.recorded import recorded
from picture_chats import NUM_TOKENS, answer_all, in_numbers, part, request
from tiny_qwen_vl import MERGE, VIDEO

from quire.proto.api import (
    Chat,
    ChatMessage,
    GenerateRequest,
    RequestError,
    TextPart,
    VideoPart,
)

FAMILIES = {
    "Qwen3-VL": tiny_qwen3_vl.FAMILY,
    "Qwen2.5-VL": tiny_qwen2_5_vl.FAMILY,
    "Qwen2-VL": tiny_qwen2_vl.FAMILY,
    "Qwen3-VL with experts": tiny_qwen3_vl_moe.FAMILY,
    "GLM-4.1V": tiny_glm4v.FAMILY,
}
TWO_RANKS_IN_CHUNKS = (
    *("--tensor-parallel-size", "2"),
    *("--max-num-batched-tokens", "24", "--max-num-seqs", "8", "--block-size", "8"),
)
FPS = 2


def frames(count, seed):
    """So small that no bound of four of them changes their size by more than rounding, in any family."""
    return [picture(5 * 28, 3 * 30, 100 * seed + number) for number in range(count)]


FOUR, THREE, ONE, SEEN = frames(4, 1), frames(3, 2), frames(1, 3), picture(96, 64, 0)
CHATS = {
    "first": [FOUR, "what do you see"],
    "last": ["a quire is", THREE],
    "two": [THREE, "and", FOUR, "in that one"],
    "a frame": ["in", ONE, "what"],
    "with a picture": [SEEN, "the", FOUR, "pages", SEEN],
}


class Reference:
    """What transformers makes of pictures and of lists of frames."""

    def __init__(self, family, folder):
        self._family = family
        self._library = family.reference(folder)
        self._folder = folder
        self.tokenizer = self._library.tokenizer
        self.video_id = self.tokenizer.convert_tokens_to_ids(family.video)

    def prompt(self, content):
        """Token ids, and the kind of each: text 0, an image's 1, a video's 2."""
        parts = [
            {"type": "text", "text": one}
            if isinstance(one, str)
            else {"type": "video" if isinstance(one, list) else "image"}
            for one in content
        ]
        messages = [{"role": "user", "content": parts}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for one in content:
            if isinstance(one, list):
                text = self._with_video(text, *self.video(one)[1][0])
            elif isinstance(one, Image.Image):
                _, rows, columns = self._library.pixels([one])["image_grid_thw"][0].tolist()
                text = text.replace(self._family.image, "<image>" * (rows * columns // MERGE**2), 1)
        text = text.replace("<image>", self._family.image).replace("<video>", self._family.video)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        kinds = [{self._library.image_id: 1, self.video_id: 2}.get(token, 0) for token in ids]
        if self._family is tiny_glm4v.FAMILY:  # a row of its videos is one of an image
            ids = [self._library.image_id if token == self.video_id else token for token in ids]
        return ids, kinds

    def _with_video(self, text, times, rows, columns):
        pads = "<video>" * (rows * columns // MERGE**2)
        place = self._family.video
        if self._family is tiny_glm4v.FAMILY:
            begin, end = tiny_glm4v.IMAGES
            return text.replace(place, "".join(f"{begin}{pads}{end}{2 * at // FPS}" for at in range(times)), 1)
        if not self._family.name.startswith("Qwen3VL"):
            return text.replace(place, pads * times, 1)
        spelled = "".join(
            f"<{self._second(index, times):.1f} seconds><|vision_start|>{pads}<|vision_end|>" for index in range(times)
        )
        return text.replace(place, spelled, 1)

    def _second(self, index, times):
        """The middle between both frames' times; one alone, or the last of an odd number, is its own partner."""
        first = 2 * index
        last = min(first + 1, self._num_frames - 1)
        return (first / FPS + last / FPS) / 2

    def video(self, images):
        """Patches of a video's frames, and its grid."""
        self._num_frames = len(images)
        known = [self._library.pixels([one]) for one in images]
        singles = [one["pixel_values"] for one in known]
        if len(singles) % 2:
            singles.append(singles[-1])
        size = self._family.patch**2
        split = [one.view(len(one), 3, 2, size)[:, :, :1] for one in singles]
        pairs = [torch.cat(split[at : at + 2], 2).flatten(1) for at in range(0, len(split), 2)]
        _, rows, columns = known[0]["image_grid_thw"][0].tolist()
        return torch.cat(pairs), [(len(pairs), rows, columns)]

    @torch.inference_mode()
    def greedy(self, content):
        ids, kinds = self.prompt(content)
        images = [one for one in content if isinstance(one, Image.Image)]
        media = dict(self._library.pixels(images)) if images else {}
        videos = [self.video(one) for one in content if isinstance(one, list)]
        media["pixel_values_videos"] = torch.cat([values for values, _ in videos])
        media["video_grid_thw"] = torch.tensor([grid for _, grids in videos for grid in grids])
        if self._family.name == "Qwen2_5_VL":
            media["second_per_grid_ts"] = torch.tensor([2.0 / FPS] * len(videos))
        model = self._family.model_class.from_pretrained(self._folder, dtype=torch.float32).eval()
        given = torch.tensor([ids])
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            mm_token_type_ids=torch.tensor([kinds]),
            **media,
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return len(ids), out[0, len(ids) :].tolist()


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name == "Qwen3-VL" else pytest.mark.thorough) for name in FAMILIES],
)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def served(family, tmp_path_factory):
    """(the folder, and by chat [the number of its prompt's tokens, the tokens that follow]); the library's GLM takes no
    pictures beside videos."""
    chats = {name: chat for name, chat in CHATS.items() if family is not tiny_glm4v.FAMILY or SEEN not in chat}
    folder = family.write_checkpoint(tmp_path_factory.mktemp("vision"))

    def compute():
        reference = Reference(family, folder)
        return [reference.greedy(content) for content in chats.values()]

    files = [(folder / name).read_text() for name in ("tokenizer.json", "preprocessor_config.json")]
    answers = recorded("videos", [family.name, folder, files, in_numbers(list(chats.values())), NUM_TOKENS], compute)
    if family is tiny_qwen3_vl_moe.FAMILY:
        tiny_qwen3_vl_moe.publish(folder)
    return folder, dict(zip(chats, answers, strict=True))


def test_answers_to_videos_are_those_of_transformers(serve, served):
    folder, expected = served
    engine = serve(str(folder), *TWO_RANKS_IN_CHUNKS)
    answer_all(engine, {name: CHATS[name] for name in expected}, expected)
    eventually(engine.idle)
    engine.stop()


def test_a_chat_over_http_takes_frames_as_vllm_writes_them(vision_engine):
    model = json.load(urllib.request.urlopen(f"http://{vision_engine.http}/v1/models"))["data"][0]["id"]
    encoded = ",".join(base64.b64encode(png(one)).decode() for one in FOUR)
    content = [
        {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{encoded}"}},
        {"type": "text", "text": CHATS["first"][1]},
    ]
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": NUM_TOKENS}
    body |= {"temperature": 0, "ignore_eos": True}
    sent = urllib.request.Request(
        f"http://{vision_engine.http}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(sent) as reply:
        found = json.load(reply)
    generated = vision_engine.client.generate(request(CHATS["first"]))
    assert found["choices"][0]["message"]["content"] == generated.outputs[0].text
    assert found["usage"]["prompt_tokens"] == generated.prompt_tokens


def test_a_text_names_no_place_of_a_video(vision_engine):
    parts = [TextPart(f"<|vision_start|>{VIDEO}<|vision_end|>"), part(FOUR)]
    asked = GenerateRequest(input=Chat([ChatMessage("user", parts)]), temperature=0, max_tokens=4)
    assert vision_engine.client.generate(asked).outputs[0].finished.usage.completion_tokens <= 4


@pytest.mark.parametrize("data", [b"\0\0\0\x18ftypmp42 and no more", b"GIF89a", b"RIFF\x10\0\0\0AVI LIST"])
def test_bad_videos_cost_their_own_request_a_typed_error(vision_engine, data):
    asked = GenerateRequest(input=Chat([ChatMessage("user", [TextPart("see"), VideoPart(data=data)])]), max_tokens=4)
    with pytest.raises(RequestError) as refused:
        vision_engine.client.generate(asked)
    assert (refused.value.reason, refused.value.field) == ("INVALID_MEDIA", "chat.messages[0].content_parts[1]")
