"""On PYTHONPATH of the scripts' processes: those that use a GPU find a chip that is not here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from forked import target

if target([sys.executable, *sys.orig_argv[1:]]) >= 0:
    from host import take_place

    take_place()
else:
    sys.path.pop()
