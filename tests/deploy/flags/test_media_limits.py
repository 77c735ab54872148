"""Limits of images as vLLM's users write them, on the command line and in a file."""

import json

import pytest

from quire.deploy.__main__ import build_parser
from quire.deploy.flags.arguments import UsageError, gather, read_yaml
from quire.deploy.flags.media_limits import parse_media_limits


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("image=8", {"image": 8}),
        ("image=8,video=1", {"image": 8, "video": 1}),
        ('{"image": 8, "video": 0}', {"image": 8, "video": 0}),
        ('{"image": {"count": 8, "width": 1280, "height": 720}}', {"image": 8}),
        (
            '{"video": {"count": 1, "num_frames": 32, "width": 512, "height": 512}, "image": 2}',
            {"video": 1, "image": 2},
        ),
    ],
)
def test_every_form_means_a_number_for_each_kind(text, limits, tmp_path):
    assert json.loads(parse_media_limits(text)) == limits
    _, options = gather(build_parser().parse_args(["serve", "m", "--limit-mm-per-prompt", text]))
    assert json.loads(options.limit_mm_per_prompt) == limits
    (tmp_path / "f.yaml").write_text(f"limit-mm-per-prompt: {text}\n")
    assert json.loads(read_yaml(tmp_path / "f.yaml", [])["limit_mm_per_prompt"]) == limits


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8",
        "image",
        "image=",
        "image=-1",
        "image=8;video=1",
        "[8]",
        '{"image": "8"}',
        '{"image": {"width": 3}}',
        '{"image": {"count": 8, "deep": 1}}',
        '{"image": true}',
    ],
)
def test_anything_else_is_refused_with_an_example(text, tmp_path):
    with pytest.raises(ValueError, match="expected image=8,video=1, or a JSON object"):
        parse_media_limits(text)
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "m", "--limit-mm-per-prompt", text])


def test_a_file_names_the_key(tmp_path):
    (tmp_path / "f.yaml").write_text("limit-mm-per-prompt: {image: many}\n")
    with pytest.raises(UsageError, match=r"limit-mm-per-prompt: expected image=8"):
        read_yaml(tmp_path / "f.yaml", [])
