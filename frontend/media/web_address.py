"""The web addresses that images may come from, read once and strictly: no other process reads a URL again."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote

import msgspec

from quire.frontend.media.refused import MediaRefused

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_HOST_CHARS = 253

_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE)
"""Scheme, authority, path, query (RFC 3986, appendix B)."""
_UNWRITABLE = re.compile(r"[\x00-\x20\x7f\\]")
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""Last label of what resolvers take for an IPv4 address, in whatever form."""
_KEPT = "!#$%&'()*+,/:;=?@[]~"
"""Characters of a path or query that stay as they are; others are percent-encoded, as browsers do."""


class WebAddress(msgspec.Struct, frozen=True):
    """The parts of a URL of scheme http or https. `host` is lower case; an IPv6 address has no brackets."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, ASCII."""

    @classmethod
    def parse(cls, url: str) -> "WebAddress":
        """Raises `MediaRefused`."""
        if _UNWRITABLE.search(url):
            raise MediaRefused("the URL has a space, a backslash or a control character; percent-encode it")
        parts = _URL.fullmatch(url)
        if parts is None:
            raise MediaRefused("the URL is malformed; write https://host/path")
        scheme, authority = parts[1].lower(), parts[2]
        if "@" in authority:
            raise MediaRefused("the URL has a user name or a password; leave them out")
        host, port = _host_and_port(authority)
        target = quote((parts[3] or "/") + (parts[4] or ""), safe=_KEPT)
        return cls(scheme, host, port or DEFAULT_PORTS[scheme], target)

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry of `allowed_media_domains`.

    `example.com` is that host alone, `*.example.com` or `.example.com` every host below it. Only the ports of http (80)
    and https (443) are allowed, or with `example.com:8443` only that one.
    """

    host: str
    port: int | None
    below: bool

    @classmethod
    def parse(cls, entry: str) -> "AllowedHost":
        """Raises `ValueError`."""
        host = entry.removeprefix("*").removeprefix(".")
        below = entry != host
        if entry.startswith("*") and not entry.startswith("*."):
            raise ValueError(f"allowed_media_domains: {entry!r} is too wide; write *.example.com")
        try:
            return cls(*_host_and_port(host), below)
        except MediaRefused as error:
            form = "write example.com, *.example.com or example.com:8443"
            raise ValueError(f"allowed_media_domains: {entry!r}: {error}; {form}") from error

    def allows(self, address: WebAddress) -> bool:
        named = address.host.endswith(f".{self.host}") if self.below else address.host == self.host
        return named and address.port == (self.port or DEFAULT_PORTS[address.scheme])


def _host_and_port(authority: str) -> tuple[str, int | None]:
    """The host in the one form that is compared, and the port if one is written. Raises `MediaRefused`."""
    if not authority.isascii():
        raise MediaRefused("the host name is not ASCII; write it as xn--...")
    parts = _AUTHORITY.fullmatch(authority.lower())
    port = int(parts[2]) if parts is not None and parts[2] else None
    if parts is None or (port is not None and not 0 < port < 65_536):
        raise MediaRefused("the host is malformed")
    return _host(parts[1]), port


def _host(written: str) -> str:
    try:
        if written.startswith("["):
            return str(IPv6Address(written[1:-1]))
        host = written.removesuffix(".")
        labels = host.split(".")
        if _NUMBER.fullmatch(labels[-1]):
            return str(IPv4Address(host))
    except ValueError as error:
        raise MediaRefused("the host is a number; write an IP address in its usual form") from error
    if len(host) > MAX_HOST_CHARS or not all(map(_LABEL.fullmatch, labels)):
        raise MediaRefused("the host name is malformed")
    return host
