"""The proxies that the environment names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2


def proxy_for(url: httpx2.URL) -> str | None:
    """Return the proxy for an address (``HTTPS_PROXY``, ``ALL_PROXY``, ``NO_PROXY``); ``None`` for none."""
    import urllib.request  # takes long to import

    proxies, host = urllib.request.getproxies(), url.raw_host.decode("ascii")
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(f"{host}:{url.port}" if url.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
