"""The addresses of the public internet, which are all that an image may be fetched from.

What is left out are the registries' special purposes (IANA, RFC 6890), and forms of IPv6 that carry an IPv4 address to
a translator or tunnel, which would lead back into the networks that are left out.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_NOT_PUBLIC = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",
            "100.64.0.0/10",  # carriers' own, and a cloud's metadata
            "127.0.0.0/8",
            "168.63.129.16/32",  # a cloud's host, as its machines see it
            "169.254.0.0/16",  # link-local, and clouds' metadata
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""All of IPv6 that is given out: no loopback, link-local, unique local, multicast or translated (64:ff9b::/96) one."""
_NOT_PUBLIC_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # Teredo, benchmarks, identifiers
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)


def is_public(address: Address) -> bool:
    """True for an address that anybody on the internet could reach. `::ffff:a.b.c.d` is judged as IPv4."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        return address in _GLOBAL_UNICAST and not any(address in network for network in _NOT_PUBLIC_V6)
    return not any(address in network for network in _NOT_PUBLIC)
