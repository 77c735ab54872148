"""The soak of images, on a few of them: that everybody is looked at, and that answers are what they should be."""

import pytest


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
