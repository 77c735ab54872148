"""The subcommands of `quire`."""
