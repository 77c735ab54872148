"""The addresses that an image may come from: the public internet's, in no disguise."""

from ipaddress import ip_address

import pytest

from quire.frontend.media.public_address import is_public

PUBLIC = ["1.1.1.1", "93.184.215.14", "100.63.255.255", "100.128.0.0", "172.32.0.1", "223.255.255.255"]
PUBLIC_V6 = ["2606:4700::1111", "2a00:1450:4001::200e", "2001:200::1", "::ffff:1.1.1.1"]
NOT_PUBLIC = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.19.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.251",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
]
NOT_PUBLIC_V6 = [
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PUBLIC + PUBLIC_V6)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC + NOT_PUBLIC_V6)
def test_an_address_of_a_network_of_its_own_is_not(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_of_ipv4_within_one_of_ipv6_is_not_either(address: str) -> None:
    number = int(ip_address(address))
    assert not is_public(ip_address(f"::ffff:{address}"))
    assert not is_public(ip_address((0x64_FF9B << 96) | number))
    assert not is_public(ip_address((0x2002 << 112) | number << 80))
