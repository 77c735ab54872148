"""Whether quire is right on this machine's GPU: kernels, graphs, runner, whole engines. Any failed number fails it.

`python tests/gpu/check.py [--parts PART ...]` runs from a plain checkout in at most ten minutes: what is most likely to
be wrong first, what might hang last. Each part is a process of its own, so that one that breaks the device breaks no
other. `--device cpu` runs the same checks with the CPU's kernels and small shapes: it proves that this script works,
and nothing about a GPU.
"""

import sys

from attempts import Part
from script import Script

ENGINE_CASE_SECONDS = 110.0
SCRIPT = Script(
    "check",
    __doc__.splitlines()[0],
    "check_parts",
    (
        [Part("tiny", 80.0, ENGINE_CASE_SECONDS)],
        # at once, because most of their time goes into compiling
        [
            Part(name, 130.0)
            for name in ("layers", "linears", "decode", "prefill", "sampling", "encoder", "forms", "vision")
        ]
        + [Part(name, 130.0, ENGINE_CASE_SECONDS) for name in ("families", "experts", "heads")],
        [Part(name, 90.0) for name in ("runner", "transformers")] + [Part("group", 90.0, most_seconds=60.0)],
        [Part("engine", 110.0, ENGINE_CASE_SECONDS)],  # it measures memory: nothing runs beside it
        [Part("specialized", 50.0, 30.0, most_seconds=60.0)],
    ),
    540.0,
)

if __name__ == "__main__":
    sys.exit(SCRIPT.main())
