"""The metrics page of a frontend, scraped."""

import asyncio
import urllib.request

from parts.clock import GUARD
from prometheus_client.parser import text_string_to_metric_families


class Page:
    """A scraped page; `page("name", label="value")` is one sample."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]


async def scrape(server, **headers: str) -> tuple[Page, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}/metrics", headers=headers)

    def get() -> tuple[Page, str]:
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            return Page(answer.read().decode()), answer.headers["content-type"]

    return await asyncio.to_thread(get)


def run(serving, case, **config):
    async def main():
        async with serving(http_port=0, **config) as s:
            await case(s)

    asyncio.run(main())


def answer_five(s, submit) -> None:
    s.scheduler.answer(submit.number, [70, 71, 72, 73, 74])
