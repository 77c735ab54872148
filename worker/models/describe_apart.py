"""`python -m quire.worker.models.describe_apart FOLDER`: prints a model as the library describes it."""

import sys

from quire.proto.process.process_exit import exit_after
from quire.proto.process.uncollected import uncollected


def main() -> int:
    with uncollected():
        from quire.worker.models.library import describe
    return describe.main(sys.argv)


if __name__ == "__main__":
    exit_after(main)
