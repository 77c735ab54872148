"""`python -m quire.worker CONFIG.json --rank R --epoch E`: one rank of a worker group."""

from quire.proto.process.parent_death import tie_to_parent
from quire.proto.process.process_exit import exit_after
from quire.proto.process.uncollected import uncollected


def main() -> int:
    tie_to_parent()
    with uncollected():
        from quire.worker import rank
    return rank.main()


if __name__ == "__main__":
    exit_after(main)
