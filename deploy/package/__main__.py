"""`python -m quire ARGUMENTS`: the command `quire`, and `quire serve` where they name no command."""

import sys

from quire.deploy.__main__ import main
from quire.deploy.container import command

if __name__ == "__main__":
    sys.exit(main(command(sys.argv[1:])))
