"""The model in `/api/tags` and `/api/show`, with Ollama's own Python client."""

import asyncio

import msgspec
import ollama
import pytest
from parts.clock import GUARD


@pytest.mark.parametrize(
    ("quantization", "form", "level"),
    [
        ("none", "safetensors", "float32"),
        ("fp8 (f8 rows)", "safetensors", "fp8 (f8 rows)"),
        ("gguf (4-bit superblocks)", "gguf", "gguf (4-bit superblocks)"),
        ("gguf", "gguf", "gguf"),
    ],
)
def test_format_and_level_are_those_of_the_checkpoint(web, quantization, form, level):
    async def main():
        async with web() as w:
            w.scheduler.facts = msgspec.structs.replace(w.scheduler.facts, quantization=quantization)
            w.scheduler.change("ready")
            client = ollama.AsyncClient(host=f"http://127.0.0.1:{w.port}", timeout=GUARD, trust_env=False, verify=False)
            while (details := (await client.list()).models[0].details).quantization_level != level:
                await asyncio.sleep(0.01)
            assert (await client.show("tiny")).details == details
            assert details.format == form

    asyncio.run(main())
