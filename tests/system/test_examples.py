"""Every Python and curl example of the README and of the API's page, run as it stands against real engines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "frontend/API.md")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, bool, str, str]]:
    """(name, whether it needs the embedding model, language, code)."""
    found = []
    for page in PAGES:
        section = ""
        text = (ROOT / page).read_text()
        for match in BLOCK.finditer(text):
            headings = re.findall(r"^#+ (.*)", text[: match.start()], re.MULTILINE)
            section = headings[-1] if headings else ""
            language, code = match.groups()
            if language == "python" or "curl " in code:
                found.append((f"{page}: {section} {len(found)}", section == "Embeddings", language, code))
    return found


EXAMPLES = examples()


@pytest.mark.parametrize(("name", "embeds", "language", "code"), EXAMPLES, ids=[one[0] for one in EXAMPLES])
def test_an_example_runs_as_it_stands(request, name, embeds, language, code) -> None:
    engine = request.getfixturevalue("embedding_engine" if embeds else "shared_engine")
    code = code.replace("localhost:8000", engine.http).replace("localhost:50051", engine.target)
    command = [sys.executable, "-P", "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    # the folder of this interpreter's commands comes first: `quire` in an example is this one
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert '"error"' not in done.stdout
