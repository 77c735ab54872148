"""The words of a message for whoever typed the command: flags instead of the fields they set."""

import re
from collections.abc import Mapping


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """Name fields by `flags` (field -> flag): `max_receive_bytes: got 0` becomes `--max-body-bytes: got 0`.

    A field of one word, which may be any word, is one only where the message begins with it and a colon, or where an
    equals sign is behind it.
    """

    def named(match: re.Match[str]) -> str:
        name = match.group()
        behind = message[match.end() : match.end() + 1]
        is_field = "_" in name or behind == "=" or (match.start() == 0 and behind == ":")
        return flags.get(name, name) if is_field else name

    return re.sub(r"(?<![\w/.-])\w+(?![\w/]|\.\w)", named, message)
