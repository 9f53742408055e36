"""Fetching pages: redirects, limits, failures, and no connection left open."""

import gzip
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.site import Answer, NameTable, User, open_site
from support.sockets import create_certificate

from chain.tools.research import pages
from chain.tools.research.addresses import SourceError
from chain.tools.research.hosts import HostApprovals, HostRefused
from chain.tools.research.pages import MAX_SOURCE_BYTES, WebPage
from chain.version import VERSION


@pytest.fixture
async def names() -> NameTable:
    """Resolve only the names ``a.test`` and ``b.test``. Both lead to this machine."""
    names = NameTable({"a.test": ["127.0.0.1"], "b.test": ["127.0.0.1"]})
    trio.socket.set_custom_hostname_resolver(names)
    return names


@pytest.fixture(autouse=True)
def check_sockets() -> Iterator[None]:
    """Check that the test leaves no socket open."""

    def count() -> int:
        links = Path("/proc/self/fd").iterdir()
        return sum(link.is_symlink() and str(link.readlink()).startswith("socket:") for link in links)

    before = count()
    yield
    assert count() <= before


async def fetch(address: str, user: User | None = None, host_of_user: str = "") -> WebPage:
    approvals = HostApprovals(user or User(), ())
    approvals.user_hosts = frozenset([host_of_user])
    return await pages.fetch(address, approvals)


async def fetch_error(address: str, user: User | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        await fetch(address, user)
    return str(caught.value)


async def test_a_page_has_bytes_kind_and_charset() -> None:
    async with open_site(p=Answer(b"<p>x", "Text/HTML; Charset=KOI8-R")) as site:
        page = await fetch(site.url("/p#part"))
    assert page == WebPage(site.url("/p#part"), b"<p>x", "html", "KOI8-R", was_cut=False)


async def test_a_request_has_no_credentials() -> None:
    async with open_site(p=Answer()) as site:
        await fetch(site.url("/p"))
    (headers,) = site.request_headers
    assert headers["user-agent"] == f"chain/{VERSION}"
    assert headers["host"] == f"127.0.0.1:{site.port}"
    assert {"cookie", "authorization"}.isdisjoint(headers)


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("text/markdown", "text"),
        ("application/json", "text"),
        ("application/atom+xml", "text"),
        ("text/xml", "text"),
        ("application/xhtml+xml", "html"),
        ("", "html"),
    ],
)
async def test_all_kinds_of_text_are_read(content_type: str, kind: str) -> None:
    async with open_site(x=Answer(b"\n<p>x", content_type)) as site:
        assert (await fetch(site.url("/x"))).kind == kind


# --------------------------------------------------------------------------------------------------------- redirects


async def test_a_redirect_on_one_host_needs_no_approval(names: NameTable) -> None:
    user = User()
    async with open_site(start=Answer(status=302, headers={"location": "next", "set-cookie": "a=b"})) as site:
        site.redirect("/next", "/end")
        site.pages["/end"] = Answer(b"x")
        page = await fetch(site.url("/start", "a.test"), user)
    assert page.address == site.url("/end", "a.test")
    assert user.asked_about == ["a.test", "127.0.0.1"]
    assert not any("cookie" in headers for headers in site.request_headers)


async def test_a_redirect_to_another_host_needs_approval(names: NameTable) -> None:
    user = User()
    async with open_site(end=Answer(b"x")) as site:
        site.redirect("a.test/x", site.url("/end", "b.test"))
        page = await fetch(site.url("/x", "a.test"), user, host_of_user="a.test")
    assert page.address == site.url("/end", "b.test")
    assert user.asked_about == ["127.0.0.1", "b.test"]


async def test_a_refused_host_is_not_visited(names: NameTable) -> None:
    async with open_site() as site:
        site.redirect("a.test/x", site.url("/end", "b.test"))
        error = await fetch_error(site.url("/x", "a.test"), User({"b.test": "no"}))
    assert error == "redirects to b.test, which was refused: no"
    assert site.requests == ["a.test/x"]


async def test_private_address_of_an_approved_name_needs_approval(names: NameTable) -> None:
    async with open_site(x=Answer(b"x")) as site:
        with pytest.raises(HostRefused, match="no"):
            await fetch(site.url("/x", "a.test"), User({"127.0.0.1": "no"}))
        assert not site.requests


async def test_a_redirect_to_a_private_address_needs_approval() -> None:
    async with open_site() as site:
        site.redirect("/x", "http://169.254.169.254/latest/meta-data/")
        error = await fetch_error(site.url("/x"), User({"169.254.169.254": "no"}))
    assert "169.254.169.254, which was refused" in error


async def test_a_name_is_resolved_after_its_approval(names: NameTable) -> None:
    with pytest.raises(HostRefused):
        await fetch("http://secret-data.a.test/", User({"secret-data.a.test": "no"}))
    assert names.lookups == []


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("file:///etc/passwd", "not an http or https address"),
        ("http://user:secret@127.0.0.1/", "a user name or a password"),
        ("http://[", "not a valid address"),
        ("", "answered 302 Found"),
    ],
)
async def test_an_invalid_redirect_is_an_error(location: str, error: str) -> None:
    async with open_site() as site:
        site.redirect("/a", location)
        assert error in await fetch_error(site.url("/a"))
    assert len(site.requests) == 1


async def test_the_number_of_redirects_is_limited() -> None:
    async with open_site() as site:
        site.redirect("/a", "/a")
        assert f"redirects more than {pages.MAX_REDIRECTS} times" in await fetch_error(site.url("/a"))
    assert len(site.requests) == pages.MAX_REDIRECTS + 1


# ------------------------------------------------------------------------------------------------------------ limits


async def test_an_endless_page_is_cut() -> None:
    async with open_site(x=Answer(is_endless=True)) as site:
        page = await fetch(site.url("/x"))
        assert (len(page.raw), page.was_cut) == (MAX_SOURCE_BYTES, True)
        await trio.testing.wait_all_tasks_blocked()
        assert site.open_connections == 0


async def test_a_page_of_the_largest_size_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_SOURCE_BYTES", 1_000)
    async with open_site(largest=Answer(b"x" * 1_000), larger=Answer(b"x" * 1_001)) as site:
        assert not (await fetch(site.url("/largest"))).was_cut
        assert (await fetch(site.url("/larger"))).was_cut


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)], ids=["gzip", "deflate"]
)
async def test_the_limit_is_for_decompressed_bytes(coding: str, compress: Callable[[bytes, int], bytes]) -> None:
    body = compress(b"x" * (2 * MAX_SOURCE_BYTES), 1)
    async with open_site(x=Answer(body, headers={"content-encoding": coding})) as site:
        page = await fetch(site.url("/x"))
    assert (page.raw, page.was_cut) == (b"x" * MAX_SOURCE_BYTES, True)


async def test_a_page_that_stops_times_out(mock_clock: trio.testing.MockClock) -> None:
    errors: list[str] = []

    async def visit(address: str) -> None:
        errors.append(await fetch_error(address))

    async def pass_time(seconds: float) -> None:
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    async with open_site(x=Answer(b"some", is_held=True)) as site, trio.open_nursery() as nursery:
        nursery.start_soon(visit, site.url("/x"))
        await site.held_answer_sent.wait()
        await pass_time(pages.SOURCE_S - 1)
        assert errors == []
        await pass_time(1)
        assert errors == ["took longer than 30 s"]
        assert site.open_connections == 0


async def test_a_question_pauses_the_timeout(mock_clock: trio.testing.MockClock) -> None:
    user = User(on_question=lambda: mock_clock.jump(pages.SOURCE_S + 1))
    async with open_site(x=Answer(b"some")) as site:
        assert (await fetch(site.url("/x"), user)).raw == b"some"


@pytest.mark.parametrize("body", [b"", b"some of it"], ids=["before the body", "in the body"])
async def test_a_cancelled_fetch_closes_its_connection(body: bytes) -> None:
    async with open_site(x=Answer(body, is_held=True)) as site, trio.open_nursery() as nursery:
        nursery.start_soon(fetch, site.url("/x"))
        await site.held_answer_sent.wait()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        assert site.open_connections == 0


# ---------------------------------------------------------------------------------------------------------- failures


UNUSABLE = {
    "error": (Answer(status=404), "answered 404 Not Found"),
    "unknown status": (Answer(status=799), "answered 799"),
    "status that never has a body": (Answer(status=304), "answered 304 Not Modified"),
    "image": (Answer(content_type="image/png"), "is 'image/png'; only text"),
    "program without a type": (Answer(b"\x7fELF\0\0", content_type=""), "is not text"),
    "no gzip": (Answer(b"nonsense", headers={"content-encoding": "gzip"}), "cannot be decompressed"),
    "compressed twice": (Answer(b"x", headers={"content-encoding": "gzip, gzip"}), "is compressed as"),
    "unsupported compression": (Answer(b"x", headers={"content-encoding": "br"}), "is compressed as"),
    "incomplete": (Answer(b"ab", headers={"content-length": "5"}), "ended too early"),
    "incomplete chunks": (Answer(b"ab", headers={"transfer-encoding": "chunked"}), "ended too early"),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("answer", "error"), UNUSABLE.values(), ids=UNUSABLE)
async def test_an_unusable_answer_is_an_error(answer: Answer, error: str) -> None:
    async with open_site(x=answer) as site:
        assert error in await fetch_error(site.url("/x"))


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("ftp://127.0.0.1/x", "not an http or https address"),
        ("http://me@127.0.0.1/", "a user name or a password"),
        ("http:///x", "not a valid address"),
        ("http://127.0.0.1:99999/", "not a valid address"),
        ("http://a b/", "not a valid address"),
        ("http://nobody.test/", "the name nobody.test was not found"),
        ("http://empty.test/", "cannot be reached: the name empty.test has no address"),
        pytest.param(f"http://127.0.0.1/{'x' * 3000}", "more than 2000 characters", id="long address"),
    ],
)
async def test_an_unusable_address_is_an_error(names: NameTable, address: str, error: str) -> None:
    names.table["empty.test"] = []
    assert error in await fetch_error(address)


async def test_a_refused_connection_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert await fetch_error(f"http://127.0.0.1:{port}/") == "cannot be reached: Connection refused"


async def test_the_next_address_of_a_name_is_tried(names: NameTable) -> None:
    names.table["a.test"] = ["127.0.0.2", "127.0.0.1"]  # no server listens on 127.0.0.2
    async with open_site(x=Answer(b"x")) as site:
        assert (await fetch(site.url("/x", "a.test"))).raw == b"x"


async def test_a_certificate_must_be_trusted_and_match(
    names: NameTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate_of_a, tls = create_certificate(tmp_path)
    async with open_site(tls, x=Answer(b"x")) as site:
        page_of_a, page_of_b = site.url("/x", "a.test", "https"), site.url("/x", "b.test", "https")
        assert (await fetch_error(page_of_a)).startswith("cannot be reached: its certificate is not valid")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate_of_a))
        assert (await fetch(page_of_a)).raw == b"x"
        assert "is not valid" in await fetch_error(page_of_b)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
        assert "the trusted certificates cannot be read" in await fetch_error(page_of_a)


async def test_a_server_without_tls_is_an_error() -> None:
    async with open_site() as site:
        assert "no secure connection could be made" in await fetch_error(site.url("/x", scheme="https"))


async def test_the_proxy_resolves_names(names: NameTable, monkeypatch: pytest.MonkeyPatch) -> None:
    user = User()
    async with open_site() as proxy:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{proxy.port}")
        proxy.pages["example.org/x"] = Answer(b"x")
        assert (await fetch("http://example.org/x", user)).raw == b"x"
    assert (user.asked_about, names.lookups) == (["example.org"], [])


async def test_no_proxy_exempts_a_host(names: NameTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "a.test")
    async with open_site(x=Answer(b"x")) as site:
        assert (await fetch(site.url("/x", "a.test"))).raw == b"x"
    assert names.lookups == ["a.test"]
