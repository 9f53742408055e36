"""Which requests go through the proxy of the environment, and which read the trusted certificates."""

from __future__ import annotations

import httpx2
import pytest

from chain.network import proxy_for, tls_context

PROXY = "http://127.0.0.2:3128"


@pytest.mark.parametrize(
    ("no_proxy", "direct_urls", "proxied_urls"),
    [  # NO_PROXY, the URLs that it exempts, and others
        ("", [], ["http://127.0.0.1:8080", "https://example.org"]),
        ("*", ["https://example.org", "http://10.1.2.3"], []),
        ("foo,*", ["https://example.org"], []),
        ("example.org", ["https://example.org", "http://a.example.org:81"], ["https://an-example.org"]),
        ("*.example.org", ["https://a.example.org"], ["https://example.org", "https://aexample.org"]),
        ("https://example.org", ["https://example.org"], ["http://example.org", "https://a.example.org"]),
        ("all://example.org", ["https://example.org", "http://example.org"], ["https://a.example.org"]),
        (
            "10.0.0.0/8, 192.168.1.5",
            ["http://10.1.2.3:8080", "http://192.168.1.5"],
            ["http://192.168.1.6", "http://a.b"],
        ),
        ("[::1],fd00::/8", ["http://[::1]:80", "http://[fd00::1]"], ["http://[::2]"]),
        ("localhost:8080", ["http://localhost:8080"], ["http://localhost:8081"]),
        (",nonsense/99,[,://", [], ["https://example.org"]),
    ],
)
def test_no_proxy_names_hosts_that_are_reached_directly(
    no_proxy: str, direct_urls: list[str], proxied_urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert {url: proxy_for(httpx2.URL(url)) for url in (*direct_urls, *proxied_urls)} == (
        dict.fromkeys(direct_urls) | dict.fromkeys(proxied_urls, PROXY)
    )


@pytest.mark.parametrize(
    ("url", "proxy", "has_certificates"),
    [
        ("http://127.0.0.1:8080", "", False),
        ("http://127.0.0.1:8080", PROXY, False),
        ("http://127.0.0.1:8080", "https://127.0.0.2", True),
        ("https://example.org", "", True),
    ],
)
def test_only_encrypted_connections_read_the_certificates(
    url: str, proxy: str, has_certificates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    assert bool(tls_context(httpx2.URL(url)).cert_store_stats()["x509_ca"]) == has_certificates
