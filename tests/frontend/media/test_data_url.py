"""Images in the request itself: base64 as browsers take it, whole or not at all."""

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.media import data_url
from quire.frontend.media.refused import MediaRefused

HEAD = "data:image/png;base64,"
MOST = 1 << 20


@given(st.binary(min_size=1, max_size=400), st.integers(0, 2**32), st.booleans(), st.integers(1, 9))
def test_bytes_come_back_wherever_the_text_is_spaced_and_cut(data: bytes, seed: int, padded: bool, piece: int) -> None:
    draw = random.Random(seed)
    text = base64.b64encode(data).decode()
    if not padded:
        text = text.rstrip("=")
    spaced = "".join(letter + draw.choice(("", "", "", " ", "\n", "\r\n\t")) for letter in text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_url, "PIECE", piece)
        assert data_url.decode(HEAD + spaced, MOST) == data


def test_megabytes_come_back() -> None:
    data = random.Random(0).randbytes(MOST)
    assert data_url.decode(HEAD + base64.b64encode(data).decode(), MOST) == data


@pytest.mark.parametrize("head", ["DATA:image/JPEG;BASE64,", "data:image/x-y+z;charset=utf-8;base64,"])
def test_the_head_is_read_in_any_case_and_with_parameters(head: str) -> None:
    assert data_url.decode(head + "AAEC", MOST) == b"\0\1\2"


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png,AAEC",
        "data:;base64,AAEC",
        "data:text/plain;base64,AAEC",
        "data:image/png;base64",
        "data:image/png;base64AAEC",
        f"data:image/png;{'x' * 300};base64,AAEC",
    ],
)
def test_what_is_no_image_in_base64_is_refused_with_the_form(url: str) -> None:
    with pytest.raises(MediaRefused, match=r"data:image/png;base64,\.\.\."):
        data_url.decode(url, MOST)


@pytest.mark.parametrize(
    "text",
    [
        "A",
        "AAECA",
        "AAE=AAEC",
        "AA==AAEC",
        "AAEC=",
        "====",
        "=AAEC",
        "AA===",
        "AA_-",
        "AA%3D%3D",
        "AA!C",
        "AAEC\0",
        "é",
    ],
)
@pytest.mark.parametrize("piece", [4, 1 << 16])
def test_noise_is_refused_wherever_it_is_cut(text: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_url, "PIECE", piece)
    with pytest.raises(MediaRefused, match="base64"):
        data_url.decode(HEAD + text, MOST)


def test_nothing_and_too_much_are_refused() -> None:
    with pytest.raises(MediaRefused, match="is empty"):
        data_url.decode(HEAD + " \n", MOST)
    whole = HEAD + base64.b64encode(bytes(100)).decode()
    assert len(data_url.decode(whole, 100)) == 100
    with pytest.raises(MediaRefused, match="more than 99 bytes"):
        data_url.decode(whole, 99)
    frames = f"data:video/jpeg;base64,{whole.removeprefix(HEAD)},{whole.removeprefix(HEAD)}"
    assert [len(frame) for frame in data_url.decode_video(frames, 200)] == [100, 100]
    with pytest.raises(MediaRefused, match=r"^frame 1: with those before it has more than 199 bytes; send fewer"):
        data_url.decode_video(frames, 199)


def test_it_stops_when_nobody_waits() -> None:
    looks = iter([False, False, True])
    decoded = data_url.decode(HEAD + "AAAA" * data_url.PIECE, MOST, lambda: next(looks))
    assert len(decoded) == 2 * data_url.PIECE * 3 // 4
