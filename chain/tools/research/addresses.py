"""Addresses of pages: what is one, and whose it is.

``httpx2`` reads them, so that what is checked is what will be visited; it is imported with the first address.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chain.tools.research.hosts import as_address, folded

if TYPE_CHECKING:
    import httpx2

MAX_URL = 2_000
"""Characters of an address; servers refuse longer ones."""

_NAME = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?", re.I)
_NO_ADDRESS = "is not an address that can be visited; one looks like https://example.org/page"


class Unreadable(Exception):
    """A page cannot be had; the message is what follows its name: ``answered 404 Not Found``."""


def parsed(address: str) -> httpx2.URL:
    """The address of a page. Raises ``Unreadable`` for one that is none."""
    import httpx2

    try:
        url = httpx2.URL(address)
        name = host_in(url)
    except (httpx2.InvalidURL, ValueError):
        raise Unreadable(_NO_ADDRESS) from None
    if url.scheme not in ("http", "https"):
        raise Unreadable("is not an http or https address, and only those can be visited")
    # Of a port that is too large the system would use the rest.
    if not (_NAME.fullmatch(name) or as_address(name)) or not 0 < (url.port or 1) < 65536:
        raise Unreadable(_NO_ADDRESS)
    if len(str(url)) > MAX_URL:
        raise Unreadable(f"has more than {MAX_URL} characters")
    if url.userinfo:
        raise Unreadable("has a name or a password in it; only addresses without can be visited")
    return url


def host_of(address: str) -> str:
    """The host of an address, as two are compared; empty for what is no address."""
    try:
        return folded(host_in(parsed(address)))
    except Unreadable:
        return ""


def host_in(url: httpx2.URL) -> str:
    """The host as it is connected to: a name with other letters in its ASCII form, which cannot look like another."""
    return url.raw_host.decode("ascii")


def redirected(url: httpx2.URL, location: str) -> httpx2.URL:
    """Where a redirect leads. Raises ``Unreadable``."""
    import httpx2

    try:
        target = str(url.join(location))
    except (httpx2.InvalidURL, ValueError):
        target = ""
    try:
        return parsed(target)
    except Unreadable as error:
        raise Unreadable(f"redirects to what {error}") from None
