"""How fast quire is on this machine's GPU: one 8B engine on random weights, transformers beside it, kernels.

`python tests/gpu/bench.py [--parts PART ...]` runs from a plain checkout and ends by itself in less than ten minutes.
What was measured by then is kept; what was not is named. `--device cpu` runs a small model through the same code: it
proves that this script works.
"""

import sys

from attempts import Part
from ratios import ratios
from script import Script

START_CASE_SECONDS = 100.0
SERVER_CASE_SECONDS = 110.0
SCRIPT = Script(
    "bench",
    __doc__.splitlines()[0],
    "bench_parts",
    (
        [Part("ceilings", 20.0)],
        [Part("tower", 14.0)],
        # experts and cameras have what the others leave in a run of everything: alone they take some 60 and 90 each
        [Part("latencies", 110.0, START_CASE_SECONDS)],
        [Part("throughput", 190.0, START_CASE_SECONDS)],
        [Part("experts", 5.0, START_CASE_SECONDS)],
        [Part("experts_mxfp4", 5.0, START_CASE_SECONDS)],
        [Part("transformers", 60.0, 90.0)],
        [Part("kernels", 70.0)],
        [Part("cameras", 4.0, SERVER_CASE_SECONDS)],
        [Part("cameras_fp8", 4.0, SERVER_CASE_SECONDS)],
    ),
    560.0,
    ratios,
)

if __name__ == "__main__":
    sys.exit(SCRIPT.main())
