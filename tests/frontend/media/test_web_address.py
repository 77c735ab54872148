"""URLs of images, and the hosts that an operator allows: one reading of each, and no way around it."""

import pytest

from quire.frontend.media.refused import MediaRefused
from quire.frontend.media.web_address import AllowedHost, WebAddress

READ = {
    "http://example.com": ("http", "example.com", 80, "/"),
    "HTTPS://Images.Example.COM./a/b.png": ("https", "images.example.com", 443, "/a/b.png"),
    "https://example.com:8443/a?b=c&d=/e#top": ("https", "example.com", 8443, "/a?b=c&d=/e"),
    "http://example.com?q": ("http", "example.com", 80, "/?q"),
    "http://example.com/bücher/%C3%BC%2F.png": ("http", "example.com", 80, "/b%C3%BCcher/%C3%BC%2F.png"),
    'http://example.com/{a}"b"@c': ("http", "example.com", 80, "/%7Ba%7D%22b%22@c"),
    "http://my_camera/x": ("http", "my_camera", 80, "/x"),
    "http://xn--bcher-kva.example/x": ("http", "xn--bcher-kva.example", 80, "/x"),
    "http://93.184.215.14/x": ("http", "93.184.215.14", 80, "/x"),
    "http://[2606:4700:0:0::1111]:8080/x": ("http", "2606:4700::1111", 8080, "/x"),
}
REFUSED = {
    "http:/example.com/x": "malformed",
    "http://": "malformed",
    "http:///x": "malformed",
    "http://user:secret@example.com/x": "a user name or a password",
    "http://example.com@127.0.0.1/x": "a user name or a password",
    "http://127.0.0.1\\@example.com/x": "a backslash",
    "http://example.com/a b": "a space",
    "http://example.com/a\r\nHost: other": "a control character",
    "\thttp://example.com/": "a space",
    "http://exämple.com/x": "not ASCII",
    "http://ⓔxample.com/x": "not ASCII",
    "http://127。0。0。1/x": "not ASCII",
    "http://ex%61mple.com/x": "host is malformed",
    "http://-a.example.com/x": "host name is malformed",
    "http://a..example.com/x": "host name is malformed",
    "http://.example.com/x": "host name is malformed",
    f"http://{'a' * 64}.com/x": "host name is malformed",
    f"http://{'a.' * 130}com/x": "host name is malformed",
    "http://example.com:/x": "malformed",
    "http://example.com:0/x": "malformed",
    "http://example.com:65536/x": "malformed",
    "http://example.com:80:80/x": "malformed",
    "http://2130706433/x": "a number",
    "http://0x7f000001/x": "a number",
    "http://017700000001/x": "a number",
    "http://0177.0.0.1/x": "a number",
    "http://127.1/x": "a number",
    "http://127.0.0.0x1/x": "a number",
    "http://0x/x": "a number",
    "http://[::1/x": "malformed",
    "http://[::1]x/x": "malformed",
    "http://[fe80::1%25eth0]/x": "malformed",
    "http://[1::2::3]/x": "a number",
}


@pytest.mark.parametrize("url", READ)
def test_a_url_has_one_reading(url: str) -> None:
    assert WebAddress.parse(url) == WebAddress(*READ[url])


@pytest.mark.parametrize("url", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(MediaRefused, match=REFUSED[url]):
        WebAddress.parse(url)


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://example.com/", "example.com"),
        ("https://example.com:443/", "example.com"),
        ("https://example.com:80/", "example.com:80"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
def test_the_host_header_has_the_port_that_is_not_the_schemes(url: str, authority: str) -> None:
    assert WebAddress.parse(url).authority == authority


@pytest.mark.parametrize(
    ("entry", "allowed", "refused"),
    [
        (
            "example.com",
            ["http://example.com/", "https://EXAMPLE.com./x", "https://example.com:443/"],
            ["http://a.example.com/", "http://example.com.evil.org/", "http://example.com:8080/", "http://evil.org/"],
        ),
        (
            "*.example.com",
            ["http://a.example.com/", "https://b.a.example.com/"],
            ["http://example.com/", "http://evilexample.com/", "http://a.example.com:81/", "http://a.example.com.br/"],
        ),
        (".Example.com", ["http://a.example.com/"], ["http://example.com/"]),
        (
            "example.com:8443",
            ["https://example.com:8443/", "http://example.com:8443/"],
            ["https://example.com/", "http://example.com/", "http://example.com:84/"],
        ),
        ("*.example.com:8443", ["https://a.example.com:8443/"], ["https://a.example.com/"]),
        ("example.com:443", ["https://example.com/", "http://example.com:443/"], ["http://example.com/"]),
        ("[2606:4700:0::1111]", ["http://[2606:4700::1111]/"], ["http://[2606:4700::1112]/"]),
    ],
)
def test_an_entry_allows_its_hosts_and_ports(entry: str, allowed: list[str], refused: list[str]) -> None:
    host = AllowedHost.parse(entry)
    assert [url for url in allowed if not host.allows(WebAddress.parse(url))] == []
    assert [url for url in refused if host.allows(WebAddress.parse(url))] == []


@pytest.mark.parametrize(
    "entry", ["", "*", "*.", ".", "*example.com", "a.*.com", "https://example.com", "example.com/x", "a@b", "bücher.de"]
)
def test_an_entry_that_is_no_host_is_refused_by_name(entry: str) -> None:
    with pytest.raises(ValueError, match=r"allowed_media_domains: .*write") as caught:
        AllowedHost.parse(entry)
    assert repr(entry) in str(caught.value)
