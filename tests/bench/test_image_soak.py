"""The soak of images, on a few of them: that everybody is looked at, and that answers are what they should be."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import image_soak

from quire.deploy.bench.load.api_clients import open_grpc


def test_every_fiftieth_image_is_cut_short_and_counted_apart(scripted_server) -> None:
    target, script = scripted_server

    async def run():
        async with open_grpc(target, "", 2) as api:
            return await image_soak.load([api], 47, 4, 2, 0)

    assert asyncio.run(run()) == {"OK": 3, "broken OK": 1}
    images = [request.chat.messages[0].content_parts[0].image.data for request in script.requests]
    assert len(set(images)) == 4
    assert min(map(len, images)) < 0.7 * max(map(len, images))


def test_a_look_counts_processes_and_files(tmp_path) -> None:
    (tmp_path / "media" / "0-a").mkdir(parents=True)
    (tmp_path / "media" / "0-a" / "image").write_bytes(b"12345")
    found = image_soak.look(os.getpid(), tmp_path)
    assert found.pop("store") == {"files": 1, "bytes": 5}
    for figures in found.values():
        assert figures["rss_kib"] > figures["processes"] > 0
        assert figures["descriptors"] > 0
        assert figures["threads"] > 0


@pytest.mark.thorough
def test_a_short_soak_looks_at_every_process_and_the_store(program) -> None:
    found = program("image_soak.py", "--images", "50", "--looks", "20", "--concurrency", "4")
    broken = {status: count for status, count in found["answers"].items() if status != "OK"}
    assert found["answers"]["OK"] == 49
    assert sum(broken.values()) == 1, "one file in fifty is cut short"
    assert list(found["looks"]) == ["20", "50"]
    for number, look in found["looks"].items():
        roles = {"quire.deploy", "quire.scheduler", "quire.worker", "quire.frontend"}
        assert roles | {"quire.frontend.media.decode.decode_child", "store"} <= set(look)
        assert all(
            look[role]["processes"] == 1 and look[role]["rss_kib"] > look[role]["anon_kib"] > 0 for role in roles
        )
        assert look["store"]["files"] == min(int(number), 49)
