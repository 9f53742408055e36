"""Proxies and TLS contexts for HTTP clients."""

from __future__ import annotations

import ssl
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2


def proxy_for(url: httpx2.URL) -> str | None:
    """Return the proxy that the environment (``HTTPS_PROXY``, ``NO_PROXY``, …) sets for an address, or ``None``."""
    import urllib.request  # takes long to import

    proxies, host = urllib.request.getproxies(), url.raw_host.decode("ascii").lower()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    is_exempt = any(_is_exempt(entry, url.scheme, host) for entry in proxies.get("no", "").split(","))
    if not proxy or is_exempt or urllib.request.proxy_bypass(f"{host}:{url.port}" if url.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def tls_context(url: httpx2.URL) -> ssl.SSLContext:
    """Return the TLS context for requests to an address. For HTTPS, read the trusted certificates."""
    import httpx2

    if url.scheme == "http" and not (proxy_for(url) or "").startswith("https:"):
        # Reading the certificates takes 25 ms, which an unencrypted connection does not need.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.create_ssl_context()


def _is_exempt(entry: str, scheme: str, host: str) -> bool:
    """Return whether an entry of ``NO_PROXY`` names a host in a form that ``urllib`` does not know.

    These forms are networks (``10.0.0.0/8``), ``*``, ``*.HOST`` and ``SCHEME://HOST``.
    """
    only, separator, name = entry.strip().lower().rpartition("://")
    if separator and only not in ("all", scheme):
        return False
    with suppress(ValueError):
        return ip_address(host.strip("[]")) in ip_network(name.strip("[]"), strict=False)
    return name == "*" or (name.startswith("*.") and host.endswith(name[1:])) or (bool(separator) and name == host)
