"""The status page as a person sees it: a real browser on a real engine that works."""

import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pytest
from parts.clock import GUARD, eventually
from PIL import Image
from playwright.sync_api import Page, Route, expect, sync_playwright
from said import ADMIN, KEY

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PROMPT = "def total(values):\n    '''The sum of all values, or zero when there is none.'''\n"


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    assert chromium is not None, "chromium is missing: run `bash tests/tools.sh`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


def opened(context, **options) -> Page:
    """A page that waits for what it shall show, however slow the machine is."""
    page = context.new_page(**options)
    page.set_default_timeout(GUARD * 1000)
    expect.set_options(timeout=GUARD * 1000)
    return page


def closed(page: Page) -> None:
    """What a route still asks for is of no interest."""
    page.unroute_all(behavior="ignoreErrors")
    page.close()


@pytest.fixture(scope="module")
def engine(serve):
    return serve("--kv-cache-memory-bytes", "8MiB", "--max-num-seqs", "4", f"--step-timeout={GUARD}")


@contextlib.contextmanager
def stands_still(engine) -> Iterator[Callable[[], None]]:
    """What is asked meanwhile stays as it is, however fast the machine is, but for moments of some tokens."""
    (worker,) = engine.pids("worker")

    def run_for_a_moment() -> None:
        os.kill(worker, signal.SIGCONT)
        time.sleep(0.05)
        os.kill(worker, signal.SIGSTOP)

    os.kill(worker, signal.SIGSTOP)
    try:
        yield run_for_a_moment
    finally:
        os.kill(worker, signal.SIGCONT)


@pytest.fixture
def page(browser, engine):
    page = opened(browser, viewport={"width": 1400, "height": 1000})
    problems: list[str] = []
    # a refusal is no fault of the page, though Chromium logs it
    page.on(
        "console",
        lambda message: (
            problems.append(message.text)
            if message.type == "error" and not message.text.startswith("Failed to load resource")
            else None
        ),
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"http://{engine.http}/")
    yield page
    closed(page)
    assert problems == []


def post(address: str, label: str, **fields: object) -> dict:
    """A completion that ran to its length."""
    connection = http.client.HTTPConnection(address, timeout=GUARD)
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "seed": 1} | fields
    headers = {"content-type": "application/json", "x-request-id": label}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200
    answer = json.loads(response.read())
    connection.close()
    return answer


def picture(page: Page, canvas: str = "") -> Image.Image:
    """What a canvas shows, or the whole page. It is read from a screenshot: the page forbids eval."""
    taken = page.locator(canvas).screenshot() if canvas else page.screenshot(full_page=True)
    return Image.open(BytesIO(taken)).convert("RGB")


def colours(page: Page, canvas: str) -> int:
    """How many different colours a canvas shows."""
    return len({colour for count, colour in picture(page, canvas).getcolors(1 << 20) if count > 20})


def test_the_page_shows_requests_that_run_and_wait_and_tells_their_story(page, engine) -> None:
    post(engine.http, "before-them", max_tokens=30)
    with ThreadPoolExecutor(8) as clients, stands_still(engine):
        for index in range(8):
            clients.submit(post, engine.http, f"job-{index}", max_tokens=30)
        expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#model")).to_have_text("quire-default")
        expect(page.locator("#facts")).to_contain_text(re.compile(r"context\d\u202f\d{3} tokens"))
        expect(page.locator("#facts")).to_contain_text("ranks1 on cpu")
        expect(page.locator("#requests tr")).not_to_have_count(0)
        expect(page.locator("#requests")).to_contain_text("job-")
        expect(page.locator("#requests")).to_contain_text("waiting")
        expect(page.locator("#max-running")).to_have_text("4")
        expect(page.locator("#legend")).to_contain_text("job-")
        assert colours(page, "#pool") > 3  # free, shared, and some owners
        page.locator("#requests button").first.click()
        expect(page.locator("#stories")).to_contain_text("queued")
        expect(page.locator("#stories")).to_contain_text("admitted")
    expect(page.locator("#no-requests")).to_be_visible()
    assert colours(page, "#timeline") > 2
    expect(page.locator("#ttft")).to_contain_text("/")


def test_a_story_follows_its_request_to_the_end_and_is_found_again_among_the_ended(page, engine) -> None:
    with ThreadPoolExecutor(1) as client, stands_still(engine) as run_for_a_moment:
        job = client.submit(post, engine.http, "the-long-one", max_tokens=600)
        row = page.locator("#requests button", has_text="the-long-one")
        row.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#story-state")).to_have_text("live")
        generated = page.locator("#stories dl div", has_text="generated").locator("dd")
        for _ in range(2):
            before = generated.inner_text()
            while generated.inner_text() == before:
                run_for_a_moment()
                page.wait_for_timeout(500)
        expect(row).to_be_focused()  # rows are not made anew
    job.result()
    expect(page.locator("#story-state")).to_have_text("ended")
    expect(generated).to_have_text("600")
    expect(page.locator(".moments li").last).to_contain_text("length")
    page.click("#story-close")
    page.locator("input[value=ended]").check()
    page.fill("#filter", "the-long-one")
    expect(page.locator("#ended tr")).to_have_count(1)
    expect(page.locator("#ended tr")).to_contain_text("length")
    page.locator("#ended tr").click()
    expect(generated).to_have_text("600")
    page.fill("#filter", "nobody")
    expect(page.locator("#no-requests")).to_contain_text("nobody")


def test_siblings_say_how_much_of_the_prompt_was_there_and_the_answer_bills_it_once(page, engine) -> None:
    prompt = "class Sibling:\n    '''One of several, which share their prompt.'''\n" * 4
    usage = post(engine.http, "three-of-a-kind", prompt=prompt, n=3, max_tokens=40)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    page.locator("input[value=ended]").check()
    page.fill("#filter", "three-of-a-kind")
    expect(page.locator("#ended tr")).to_have_count(3)
    shared = str(usage["prompt_tokens"] - 1)
    cached = [row.locator("td").nth(2).inner_text() for row in page.locator("#ended tr").all()]
    assert sorted(cached) == sorted(("0", shared, shared))
    page.locator("#ended button").first.click()
    page.locator("#stories summary").nth(1).click()
    sibling = page.locator("#stories details").nth(1)
    expect(sibling).to_contain_text(f"cached{shared}")
    expect(sibling).to_contain_text(f"{shared} of {usage['prompt_tokens']} tokens are there")


def test_what_a_client_calls_its_request_is_text(page, engine) -> None:
    name = "<img/src=x/onerror=document.title='taken'>"
    post(engine.http, name, max_tokens=2)
    page.locator("input[value=ended]").check()
    page.locator("#ended button", has_text=name).click()
    expect(page.locator("#story-label")).to_have_text(name)
    expect(page.locator("main img")).to_have_count(0)
    expect(page).to_have_title("quire-default · quire")


def test_charts_have_axes_and_a_time_scale_that_can_be_chosen(page, engine) -> None:
    post(engine.http, "for-the-charts", max_tokens=30)
    chart = page.locator("#chart-tokens")
    expect(chart.locator(".top")).not_to_have_text(re.compile("^[01]?$"))
    expect(chart.locator(".zero")).to_have_text("0")
    expect(chart.locator(".from")).to_have_text("\u22121 min")
    page.select_option("#span", "900")
    expect(chart.locator(".from")).to_have_text("\u221215 min")
    expect(page.locator("#chart-kv .top")).to_have_text("100 %")
    chart.locator("canvas").hover(position={"x": 1, "y": 10})
    expect(chart.locator(".said")).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))
    expect(page.locator("#steps .from")).to_contain_text("\u2212")
    expect(page.locator("#steps .top")).to_contain_text("s")


def test_the_prefix_tree_is_drawn_when_something_is_cached(page, engine) -> None:
    post(engine.http, "to-be-cached", prompt=PROMPT * 3, max_tokens=2)
    page.locator("input[value=tree]").check()
    expect(page.locator("#tree-said")).to_contain_text("cached block")
    assert colours(page, "#tree") > 1


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.thorough)])
def test_at_both_widths_and_in_both_themes_all_of_it_fits(browser, engine, width) -> None:
    page = opened(browser, viewport={"width": width, "height": 800})
    page.goto(f"http://{engine.http}/")
    with ThreadPoolExecutor(1) as client, stands_still(engine):
        job = client.submit(post, engine.http, "a-label-that-is-much-longer-than-its-column-is-wide", n=2)
        page.locator("#requests button").first.click()
        expect(page.locator("#story-state")).to_have_text("live")
        for scheme, is_dark in (("light", False), ("dark", True)):
            page.emulate_media(color_scheme=scheme)
            shown = picture(page)
            assert shown.width == width  # nothing to scroll to sideways
            assert (sum(shown.getpixel((2, 2))) < 3 * 128) == is_dark
        for cell in page.locator("#requests tr").first.locator("th, td").all():
            box = cell.bounding_box()
            assert box is None or box["x"] + box["width"] <= width
    job.result()

    def beside_the_first() -> int:
        tiles = [round(tile.bounding_box()["y"]) for tile in page.locator(".tile").all()]
        return tiles.count(tiles[0])

    eventually(lambda: beside_the_first() == (2 if width == 390 else 4))  # the page may scroll between two questions
    closed(page)


def test_fifty_thousand_blocks_are_drawn_named_and_enlarged(browser, engine) -> None:
    page = opened(browser, viewport={"width": 1280, "height": 900})
    facts = {"output_index": 0, "state": "running", "priority": 0, "age_seconds": 1.0, "num_prompt": 5,
             "cached_tokens": 0, "num_tokens": 9, "num_scheduled": 9, "max_tokens": 20, "num_blocks": 1000,
             "num_preemptions": 0}  # fmt: skip
    live = [facts | {"label": f"job-{number}", "arrival": number + 1} for number in range(40)]
    codes = [16 + place % 40 for place in range(40_000)] + [1] * 6_000 + [0] * 4_000
    blocks = base64.b64encode(struct.pack("<50000H", *codes)).decode()

    def enlarge(route: Route) -> None:
        status = route.fetch().json()
        status["load"]["num_blocks"] = len(codes)
        route.fulfill(json=status | {"outputs": live, "blocks": blocks})

    page.route("**/v1/status*", enlarge)
    page.goto(f"http://{engine.http}/")
    expect(page.locator("#pool-count")).to_contain_text("50\u202f000 blocks")
    expect(page.locator("#legend")).to_contain_text("26 other requests with 26\u202f000")
    assert colours(page, "#pool") >= 34  # requests by turns from a list of 33, and what is cached
    page.locator("#legend button", has_text="job-3").first.click()
    expect(page.locator("#legend [aria-pressed=true]")).to_contain_text("job-3")
    page.locator("input[value=addresses]").check()
    for _ in range(4):
        page.click("#zoom-in")
    page.locator("#pool").hover(position={"x": 3 * 24 + 5, "y": 5})
    expect(page.locator("#pool-hover")).to_contain_text("block 3: job-3")
    page.click("#zoom-fit")
    expect(page.locator("#zoom-fit")).to_be_disabled()
    closed(page)


def test_what_the_page_links_to_is_there(page) -> None:
    for link in page.locator("nav a").all():
        answer = page.request.get(page.url.rstrip("/") + link.get_attribute("href"))
        assert answer.status == 200, link.get_attribute("href")
        assert len(answer.text()) > 500


def test_the_playground_streams_a_chat(page) -> None:
    page.fill("#prompt", "Write a function that adds two numbers.")
    page.fill("#max-tokens", "24")
    page.click("#send")
    expect(page.locator(".turn.user")).to_have_text("Write a function that adds two numbers.")
    expect(page.locator(".figures")).to_contain_text("24 tokens in")
    expect(page.locator(".turn.assistant")).not_to_have_text("")


def test_the_playground_can_be_stopped_and_says_why_it_was_refused(page, engine) -> None:
    page.fill("#prompt", "Go on for ever.")
    page.fill("#max-tokens", "1000")
    page.click("#send")
    expect(page.locator(".turn.assistant")).not_to_have_text("")
    with stands_still(engine):
        page.click("#stop")
        expect(page.locator(".figures")).to_have_text("stopped")
    page.fill("#prompt", "x" * 200_000)
    page.click("#send")
    expect(page.locator(".turn.error")).to_contain_text("context")


def test_the_playground_sends_pictures_and_videos_where_the_model_takes_them(browser, engine) -> None:
    page = opened(browser)
    asked: list[dict] = []
    kinds = ["text"]

    def state(route: Route) -> None:
        status = route.fetch().json()
        status["model"]["modalities"] = kinds
        route.fulfill(json=status)

    def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        chunk = json.dumps({"choices": [{"delta": {"content": "A cat."}}], "usage": None})
        route.fulfill(content_type="text/event-stream", body=f"data: {chunk}\n\ndata: [DONE]\n\n")

    page.route("**/v1/status*", state)
    page.route("**/v1/chat/completions", answer)
    page.goto(f"http://{engine.http}/")
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#attach")).to_be_hidden()
    kinds += ["image", "video"]
    expect(page.locator("#attach")).to_be_visible()
    assert page.locator("#files").get_attribute("accept") == "image/*,video/*"
    files = [
        {"name": "cat.png", "mimeType": "image/png", "buffer": b"cat"},
        {"name": "dog.mp4", "mimeType": "video/mp4", "buffer": b"dog"},
    ]
    page.set_input_files("#files", files)
    page.fill("#prompt", "What is it?")
    page.click("#send")
    expect(page.locator(".turn.user")).to_have_text("[cat.png] [dog.mp4] What is it?")
    expect(page.locator(".turn.assistant")).to_have_text("A cat.")
    (body,) = asked
    assert body["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'cat').decode()}"}},
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(b'dog').decode()}"}},
        {"type": "text", "text": "What is it?"},
    ]
    assert page.locator("#files").input_value() == ""
    closed(page)


def test_with_keys_a_browser_opens_the_page_with_the_admin_key_as_password(browser, locked_engine) -> None:
    connection = http.client.HTTPConnection(locked_engine.http, timeout=GUARD)
    connection.request("GET", "/")
    response = connection.getresponse()
    assert (response.status, "Basic" in (response.getheader("www-authenticate") or "")) == (401, True)
    response.read()
    user = base64.b64encode(f"me:{KEY}".encode()).decode()
    connection.request("GET", "/v1/status", headers={"authorization": f"Basic {user}"})
    assert connection.getresponse().status == 403
    connection.close()
    context = browser.new_context(http_credentials={"username": "me", "password": ADMIN})
    page = opened(context)
    page.goto(f"http://{locked_engine.http}/")
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#problem")).to_be_hidden()
    context.close()


@pytest.mark.thorough
def test_the_page_of_routes_shows_what_each_reads(page, engine):
    page.goto(f"http://{engine.http}/docs")
    route = page.locator('[data-route="POST /v1/chat/completions"]')
    expect(route).to_contain_text("The next turn of a chat")
    route.locator("summary").filter(has_text="ChatRequest").click()
    expect(route.get_by_role("cell", name="messages", exact=True)).to_be_visible()
    route.locator("summary").filter(has_text="ChatTurn").click()
    expect(route.get_by_role("cell", name="tool_call_id", exact=True)).to_be_visible()
    expect(page.locator("#problem")).to_be_hidden()
