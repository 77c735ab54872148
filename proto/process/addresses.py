"""The addresses that a host means to whoever listens there: every port of an engine opens the same ones."""

import errno
import socket
from dataclasses import dataclass
from typing import Any

ANY_V4, ANY_V6 = "0.0.0.0", "::"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address of this machine in numbers. `::` has both families, where the kernel lets it."""

    family: socket.AddressFamily
    host: str
    scope: tuple[int, ...] = ()
    """Flow and interface; IPv4 has none."""

    def at(self, port: int) -> tuple[str | int, ...]:
        """The argument of `bind`."""
        return (self.host, port, *self.scope)

    def written(self, port: int) -> str:
        """The address and port in a URL's form."""
        target: Any = self.at(port)
        numbers, _ = socket.getnameinfo(target, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
        return f"[{numbers}]:{port}" if self.family == socket.AF_INET6 else f"{numbers}:{port}"

    def socket(self) -> socket.socket:
        """A socket that can be bound to it."""
        made = socket.socket(self.family, socket.SOCK_STREAM)
        if self.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not socket.has_dualstack_ipv6())
        return made


def listen_addresses(host: str) -> tuple[ListenAddress, ...]:
    """The addresses of a host in the order of `getaddrinfo`; those of IPv6 are left out on a machine without it.

    Raises `OSError` when there are none.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    named = dict.fromkeys((family, address) for family, *_, address in found)
    addresses = [ListenAddress(family, str(one[0]), tuple(map(int, one[2:]))) for family, one in named]
    usable = tuple(one for one in addresses if one.family != socket.AF_INET6 or has_ipv6())
    if not usable:
        raise OSError(errno.EAFNOSUPPORT, "this machine has no IPv6")
    return usable


def has_ipv6() -> bool:
    """True on a machine with IPv6: kernels without it, and containers in which it is off, have no `::1`."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
