"""Requests as the agents sent them, word for word but for long texts and what tells of a machine."""

import json
from pathlib import Path
from typing import Any

import httpx
from parts.clock import GUARD

HERE = Path(__file__).parent


def recorded(agent: str) -> list[str]:
    """The names of an agent's requests."""
    return sorted(path.stem for path in (HERE / "recorded" / agent).glob("*.json"))


def replay(url: str, agent: str, name: str) -> httpx.Response:
    """The answer of the server at `url` to a request."""
    asked: dict[str, Any] = json.loads((HERE / "recorded" / agent / f"{name}.json").read_text())
    with httpx.Client(base_url=url, timeout=GUARD, trust_env=False) as client:
        return client.request(asked["method"], asked["path"], headers=asked["headers"], json=asked.get("body"))
