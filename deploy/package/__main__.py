"""`python -m quire ARGUMENTS`: the command `quire`, and `quire serve` where they name no command."""

import sys

from quire.deploy.__main__ import main, with_command

if __name__ == "__main__":
    sys.exit(main(with_command(sys.argv[1:])))
