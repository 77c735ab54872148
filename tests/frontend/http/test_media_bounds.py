"""Settings of a request that models with other bounds than pixels do not have: refused by name, over HTTP."""

import asyncio
import base64
import io
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

import tiny_idefics3
import tiny_internvl
import tiny_mistral3
import tiny_onevision
from PIL import Image

from quire.proto.messages.media import MediaFacts

ASKED = [
    ({"max_pixels": 401408}, "mm_processor_kwargs.max_pixels"),
    ({"min_pixels": 3136}, "mm_processor_kwargs.min_pixels"),
    ({"size": {"longest_edge": 448}}, "mm_processor_kwargs.size.longest_edge"),
    ({"size": {"shortest_edge": 9, "longest_edge": 448}}, "mm_processor_kwargs.size.shortest_edge"),
    ({"max_pixels": 1 << 62}, "mm_processor_kwargs.max_pixels"),
]


OF_FRAMES = "is no setting of this model; it has fps, num_frames for requests; leave it out"


@pytest.mark.parametrize(
    ("write", "remedy"),
    [
        (tiny_mistral3.write_checkpoint, "is no setting of this model; leave it out"),
        (tiny_idefics3.write_checkpoint, "is no setting of this model; leave it out"),
        (tiny_internvl.write_checkpoint, OF_FRAMES),
        (tiny_onevision.write_checkpoint, OF_FRAMES),
    ],
    ids=["Mistral 3", "SmolVLM", "InternVL", "LLaVA-OneVision"],
)
def test_bounds_of_pixels_are_refused_by_a_model_that_has_none(web, tmp_path, write, remedy):
    folder = tmp_path / "model"
    folder.mkdir()
    sight = {"model": str(write(folder)), "run_dir": str(tmp_path), "media": MediaFacts(("image",), 4, 16, 64)}
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    picture = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [picture]}], "max_tokens": 1}

    async def main():
        async with web(**sight) as w:
            w.answers([75])
            for more, field in ASKED:
                response = await w.client.post("/v1/chat/completions", json=body | {"mm_processor_kwargs": more})
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, field), response.text
                assert remedy in error["message"]
            assert w.scheduler.submits == []
            assert (await w.client.post("/v1/chat/completions", json=body)).status_code == 200

    asyncio.run(main())
