"""Pages that are made from the code say what the code says."""

from pathlib import Path

import generated_pages as pages
import pytest


@pytest.mark.parametrize("path", pages.PAGES)
def test_a_page_made_from_the_code_is_current(root: Path, path: str) -> None:
    assert (root / path).read_text(encoding="utf-8") == pages.PAGES[path](), f"run `{pages.COMMAND}`"


def test_every_visible_flag_of_serve_is_on_its_page() -> None:
    page = pages.options_page()
    for spec in pages.specs():
        assert f"`--{spec.name}" in page
    for flag in ("--config", "--api-key`", "--model`"):
        assert f"`{flag}" in page
