"""The style sheet: what is written can be read against what it is written on, in both themes."""

import re
from importlib import resources

import pytest

CSS = (resources.files("quire.frontend.http") / "page" / "page.css").read_text()
THEMES = {
    "light": CSS.split("@media", 1)[0],
    "dark": CSS.split("@media (prefers-color-scheme: dark)")[1].split("* {")[0],
}
WRITTEN = [
    *(
        (ink, ground)
        for ink in ("ink", "quiet", "accent", "second", "bad-ink", "rows")
        for ground in ("panel", "ground")
    ),
    *(("white", pill) for pill in ("good", "bad", "wait", "over")),
    ("panel", "accent"),
]
"""Text and what is behind it; rows is the name of an axis."""


def variables(theme: str) -> dict[str, tuple[float, ...]]:
    """Every colour of a theme, as shares of red, green and blue."""
    found = dict(re.findall(r"--([a-z-]+): #([0-9a-f]{6})", THEMES["light"]))
    found |= dict(re.findall(r"--([a-z-]+): #([0-9a-f]{6})", THEMES[theme]))
    found["white"] = "ffffff"
    return {name: tuple(int(text[at : at + 2], 16) / 255 for at in (0, 2, 4)) for name, text in found.items()}


def luminance(colour: tuple[float, ...]) -> float:
    """The relative luminance of WCAG 2."""
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_the_contrast_that_wcag_asks_for(theme):
    colours = variables(theme)
    poor = {}
    for ink, ground in WRITTEN:
        light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        least = 3.0 if ink == "rows" else 4.5
        if (ratio := (light + 0.05) / (dark + 0.05)) < least:
            poor[ink, ground] = round(ratio, 2)
    assert poor == {}
