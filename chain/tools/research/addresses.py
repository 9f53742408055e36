"""Addresses of pages: which URLs may be requested, how hosts are compared, and which IP addresses are public. Pure.

``httpx2`` parses URLs for the check as well as for the request, so that both see the same URL. It is imported only when
the first URL is parsed.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import httpx2

IPAddress: TypeAlias = IPv4Address | IPv6Address

MAX_URL = 2_000
"""The most characters of a URL; servers refuse longer URLs."""

_HOST_NAME = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?", re.I)
_NO_URL = "is not a valid address, such as https://example.org/page"

_NAT64 = IPv6Network("64:ff9b::/96")

_UNICAST = IPv6Network("2000::/3")
"""The IPv6 addresses that IANA has assigned. ``is_global`` is also true of unassigned and deprecated ranges: site-local
addresses (fec0::/10), IPv4-compatible addresses (::/96) and, in some versions of Python, local NAT64 (64:ff9b:1::/48).
"""

_DOCUMENTATION = IPv6Network("3fff::/20")
"""The range for documentation (RFC 9637), which older versions of Python do not know."""

_ISATAP = 0x5EFE
"""Marks an ISATAP address, which is tunnelled to the IPv4 address in its last 32 bits (RFC 5214).

The marker is in the 32 bits before the IPv4 address.
"""


class SourceError(Exception):
    """A source that cannot be read. The message continues a sentence that begins with the source: ``answered 404``."""


def parse_url(address: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """Parse the URL of a page, which may be relative to ``base``. Raise ``SourceError`` if it is refused."""
    import httpx2

    try:
        url = base.join(address) if base else httpx2.URL(address)
        host = host_in(url)
    except (httpx2.InvalidURL, ValueError):
        raise SourceError(_NO_URL) from None
    if url.scheme not in ("http", "https"):
        raise SourceError("is not an http or https address")
    # The system would use the lower bits of a port that is too large.
    if not (_HOST_NAME.fullmatch(host) or parse_ip(host)) or not 0 < (url.port or 1) < 65536:
        raise SourceError(_NO_URL)
    if len(str(url)) > MAX_URL:
        raise SourceError(f"has more than {MAX_URL} characters")
    if url.userinfo:
        raise SourceError("contains a user name or a password; leave them out")
    return url


def host_in(url: httpx2.URL) -> str:
    """Return the host of a URL in the ASCII form that connections use, in which no two hosts look alike."""
    return url.raw_host.decode("ascii")


def host_of(address: str) -> str:
    """Return the normalized host of a URL; empty for an invalid URL."""
    try:
        return normalize_host(host_in(parse_url(address)))
    except SourceError:
        return ""


def normalize_host(host: str) -> str:
    """Return a host in its normal form, so that hosts can be compared."""
    return host.strip().strip("[]").casefold().removeprefix("*.").strip(".")


def parse_ip(host: str) -> IPAddress | None:
    """Parse a host as an IP address. Return ``None`` if the host is a name.

    If an IPv6 address contains an IPv4 address, return the IPv4 address.
    """
    try:
        ip = ip_address(host.strip("[]"))
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        if ip in _NAT64:
            return IPv4Address(int(ip) & 0xFFFF_FFFF)
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


def is_public(ip: IPAddress) -> bool:
    """Return whether an address is public. Addresses of this machine, local networks and reserved ranges are not."""
    if isinstance(ip, IPv4Address):
        return ip.is_global and not ip.is_multicast
    if ip not in _UNICAST or ip in _DOCUMENTATION or not ip.is_global:
        return False
    # The mask ignores the two bits that say whether the IPv4 address is unique.
    is_isatap = (int(ip) >> 32) & 0xFCFF_FFFF == _ISATAP
    return not is_isatap or is_public(IPv4Address(int(ip) & 0xFFFF_FFFF))
