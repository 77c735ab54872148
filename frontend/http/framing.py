"""The framing of an HTTP/1.1 request: refusal of whatever two servers could read as two requests (RFC 9112, 11.2)."""

MAX_DIGITS = 19
"""Most digits of a Content-Length, leading zeros included."""
HOST_CHARS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:[]%")


def ambiguity(url: bytes, headers: list[tuple[bytes, bytes]], version: str) -> str | None:
    """The reason why a proxy before us might have understood the request otherwise; None for a clear one."""
    if not url.startswith(b"/"):
        return "the request target must be a path"
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and version == "1.1":
        return "there must be exactly one Host header"
    if any(not host or not HOST_CHARS.issuperset(host) for host in hosts):
        return "the Host header is not a host name"
    encodings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if encodings and (lengths or encodings != [b"chunked"] or version != "1.1"):
        return "Transfer-Encoding must be chunked, alone, and without Content-Length"
    if len(lengths) > 1 or any(not length.isdigit() or len(length) > MAX_DIGITS for length in lengths):
        return "there must be one Content-Length, a whole number"
    return None
