"""Every Python and curl example of the README and of the API's page, run as it stands against real engines.

Those of a section named in ENGINES have an engine of its own kind; `picture.png` and `clip.mp4` are where they run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from parts import forked
from PIL import Image

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "frontend/API.md")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


ENGINES = {"Embeddings": "embedding_engine", "Pictures and videos": "vision_engine"}


def examples() -> list[tuple[str, str, str, str]]:
    """(name, fixture of the engine it needs, language, code)."""
    found = []
    for page in PAGES:
        section = ""
        text = (ROOT / page).read_text()
        for match in BLOCK.finditer(text):
            headings = re.findall(r"^#+ (.*)", text[: match.start()], re.MULTILINE)
            section = headings[-1] if headings else ""
            language, code = match.groups()
            if language == "python" or "curl " in code:
                engine = ENGINES.get(section, "shared_engine")
                found.append((f"{page}: {section} {len(found)}", engine, language, code))
    return found


EXAMPLES = examples()


def write_clip(path: Path) -> None:
    """A video of a second, in which the picture darkens."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 8, (64, 48))
    for value in range(8):
        writer.write(np.full((48, 64, 3), 200 - 20 * value, np.uint8))
    writer.release()


@pytest.mark.parametrize(("name", "engine", "language", "code"), EXAMPLES, ids=[one[0] for one in EXAMPLES])
def test_an_example_runs_as_it_stands(request, tmp_path, name, engine, language, code) -> None:
    engine = request.getfixturevalue(engine)
    Image.new("RGB", (64, 48), "orange").save(tmp_path / "picture.png")
    write_clip(tmp_path / "clip.mp4")
    code = code.replace("localhost:8000", engine.http).replace("localhost:50051", engine.target)
    command = [sys.executable, "-P", "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    # the folder of this interpreter's commands comes first: `quire` in an example is this one
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    run = forked.run if language == "python" else subprocess.run
    done = run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert '"error"' not in done.stdout
