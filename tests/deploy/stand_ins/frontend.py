"""Says that it is ready, then waits."""

import sys
import time

from life import DIRECTORY, begin

INDEX = int(sys.argv[2])
settings = begin(f"frontend{INDEX}")
for number in range(settings.get("num_lines", 0)):
    print("line", number, "." * 200, flush=True)
(DIRECTORY / f"frontend-{INDEX}.ready").touch()
while True:  # a signal that comes right before a wait without end is seen after it
    time.sleep(0.05)
