"""Large bytes of a message."""


class Payload:
    """Bytes that travel in a ZeroMQ frame of their own, behind the message's: its encoding holds no copy of them."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | memoryview) -> None:
        """It holds the bytes of `data`, whatever its items and shape. Raises `TypeError` for one with gaps."""
        view = memoryview(data)
        self.data: bytes | memoryview = view.cast("B") if view.nbytes else b""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload) and self.data == other.data
