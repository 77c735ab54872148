"""GET /props and /slots, in llama-server's shapes, for reading: the model with its defaults, and what runs.

What a slot would be set to is not here, and no text of a request: only its label and its counts.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_response
from quire.frontend.http.errors import HttpError
from quire.proto.api import RequestError
from quire.proto.messages.introspection import LiveOutput

Json = dict[str, Any]


def routes(context: FrontendContext) -> list[Route]:
    async def props(request: Request) -> Response:
        info = context.engine_info.model_info()
        params = {
            "temperature": info.default_temperature,
            "top_p": info.default_top_p,
            "top_k": info.default_top_k,
            "min_p": info.default_min_p,
            "repeat_penalty": info.default_repetition_penalty,
            "n_predict": context.config.override_generation_config.max_new_tokens or -1,
        }
        name = info.model_names[0]
        return json_response(
            {
                "default_generation_settings": {"n_ctx": info.max_model_len, "params": params},
                "total_slots": info.max_num_seqs,
                "model_path": name,
                "model_alias": name,
                "chat_template": context.engine_info.chat_template,
                "modalities": {"vision": "image" in info.modalities, "audio": False},
                "build_info": f"quire {info.version}",
                "is_sleeping": False,
            }
        )

    async def slots(request: Request) -> Response:
        """`fail_on_no_slot=1`: 503 when none is idle."""
        info = context.engine_info.model_info()
        running = [one for one in await context.engine_info.outputs() if one.state == "running"]
        if len(running) >= info.max_num_seqs and request.query_params.get("fail_on_no_slot") == "1":
            raise HttpError(503, "queue_full", f"all {info.max_num_seqs} slots run a sequence", {"retry-after": "1"})
        idle = [_slot(number, info.max_model_len, None) for number in range(len(running), info.max_num_seqs)]
        busy = [_slot(number, info.max_model_len, one) for number, one in enumerate(running)]
        return json_response([*busy, *idle])

    async def change(request: Request) -> Response:
        message = "slots are neither saved, restored nor erased: equal prefixes are found in the cache by themselves"
        raise RequestError("UNSUPPORTED", f"{message}; leave the call out")

    return [
        Route("/props", props, methods=["GET"]),
        Route("/slots", slots, methods=["GET"]),
        Route("/slots/{slot}", change, methods=["POST"]),
    ]


def _slot(number: int, n_ctx: int, output: LiveOutput | None) -> Json:
    slot: Json = {"id": number, "n_ctx": n_ctx, "speculative": False, "is_processing": output is not None}
    if output is None:
        return slot
    decoded = output.num_tokens - output.num_prompt
    left = output.max_tokens - decoded
    return slot | {
        "id_task": f"{output.label}/{output.output_index}",
        "n_prompt_tokens": output.num_prompt,
        "n_prompt_tokens_cache": output.cached_tokens,
        "params": {"n_predict": output.max_tokens, "max_tokens": output.max_tokens},
        "next_token": {"has_next_token": left > 0, "n_remain": left, "n_decoded": decoded},
    }
