"""Fetching pages: redirects, limits, failures, and no connection left open."""

import gzip
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.certificates import self_signed
from support.site import Answer, Asked, Names, Site, open_site

from chain.tools.research import pages
from chain.tools.research.addresses import SourceError, host_of
from chain.tools.research.hosts import HostApprovals, HostRefused
from chain.tools.research.pages import MAX_SOURCE_BYTES, WebPage
from chain.version import VERSION


@pytest.fixture
async def names() -> Names:
    """Return a table of names that lead to this machine."""
    found = Names({name: ["127.0.0.1"] for name in ("a.test", "b.test", "c.test")})
    trio.socket.set_custom_hostname_resolver(found)
    return found


@pytest.fixture(autouse=True)
def sockets() -> Iterator[None]:
    """Check that no socket is left open."""

    def count() -> int:
        links = (os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd"))
        return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)

    before = count()
    yield
    assert count() <= before


async def fetch(address: str, user: Asked | None = None, by_user: tuple[str, ...] = ()) -> WebPage:
    approvals = HostApprovals(user or Asked(), ())
    approvals.by_user = frozenset(map(host_of, by_user))
    return await pages.fetch(address, approvals)


async def failure(address: str, user: Asked | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        await fetch(address, user)
    return str(caught.value)


async def test_a_page_has_bytes_kind_and_charset() -> None:
    async with open_site(p=Answer(b"<p>x", "Text/HTML; Charset=KOI8-R")) as site:
        page = await fetch(site.at("/p#part"))
    assert (page.raw, page.kind, page.charset, page.was_cut) == (b"<p>x", "html", "KOI8-R", False)
    assert page.address.startswith(site.at("/p"))
    (head,) = site.heads
    assert head["user-agent"] == f"chain/{VERSION}"
    assert head["host"] == f"127.0.0.1:{site.port}"
    assert {"cookie", "authorization"}.isdisjoint(head)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("text/markdown", "text"),
        ("application/json", "text"),
        ("application/atom+xml", "text"),
        ("text/xml", "text"),
        ("application/xhtml+xml", "html"),
        ("", "html"),
    ],
)
async def test_all_kinds_of_text_are_read(kind: str, expected: str) -> None:
    async with open_site(x=Answer(b"\n<p>x", kind)) as site:
        assert (await fetch(site.at("/x"))).kind == expected


# --------------------------------------------------------------------------------------------------------- redirects


async def test_a_redirect_on_one_host_needs_no_approval(names: Names) -> None:
    async with open_site(end=Answer(b"x")) as site:
        site.pages["/a"] = Answer(status=302, more={"location": "b", "set-cookie": "a=b"})
        site.redirect("/b", "/end")
        user = Asked()
        page = await fetch(site.at("/a", "a.test"), user)
    assert page.address == site.at("/end", "a.test")
    assert user.subjects == ["a.test", "127.0.0.1"]
    assert not any("cookie" in head for head in site.heads)


async def test_a_redirect_to_another_host_needs_approval(names: Names) -> None:
    async with open_site(end=Answer(b"x")) as site:
        site.redirect("a.test/x", site.at("/end", "b.test"))
        user, address = Asked(), site.at("/x", "a.test")
        assert (await fetch(address, user, by_user=(address,))).address == site.at("/end", "b.test")
        assert user.subjects == ["127.0.0.1", "b.test"]
        site.asked.clear()
        assert await failure(address, Asked({"b.test": "no"})) == "redirects to b.test, which was refused: no"
        assert site.asked == ["a.test/x"], "the refused host is not visited"


async def test_a_private_address_needs_approval(names: Names) -> None:
    """Also of an approved name, and after a redirect."""
    async with open_site(x=Answer(b"x")) as site:
        with pytest.raises(HostRefused, match="no"):
            await fetch(site.at("/x", "a.test"), Asked({"127.0.0.1": "no"}))
        assert not site.asked
        site.redirect("/x", "http://169.254.169.254/latest/meta-data/")
        assert "169.254.169.254, which was refused" in await failure(site.at("/x"), Asked({"169.254.169.254": "no"}))


async def test_a_name_is_resolved_after_its_approval(names: Names) -> None:
    with pytest.raises(HostRefused):
        await fetch("http://secret-data.a.test/", Asked({"secret-data.a.test": "no"}))
    assert names.asked == []


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("/a", f"redirects more than {pages.MAX_REDIRECTS} times"),
        ("file:///etc/passwd", "not an http or https address"),
        ("http://user:secret@127.0.0.1/", "a user name or a password"),
        ("http://[", "not a valid address"),
        ("", "answered 302 Found"),
    ],
)
async def test_an_invalid_redirect_is_an_error(to: str, says: str) -> None:
    async with open_site() as site:
        site.redirect("/a", to)
        assert says in await failure(site.at("/a"))
        assert len(site.asked) == (pages.MAX_REDIRECTS + 1 if to == "/a" else 1)


# ------------------------------------------------------------------------------------------------------------ limits


async def test_a_long_page_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_site(x=Answer(b"x" * 1_000), y=Answer(b"x" * 1_001), z=Answer(is_endless=True)) as site:
        page = await fetch(site.at("/z"))
        assert (len(page.raw), page.was_cut) == (MAX_SOURCE_BYTES, True)
        await trio.testing.wait_all_tasks_blocked()
        assert site.open == 0
        monkeypatch.setattr(pages, "MAX_SOURCE_BYTES", 1_000)
        assert [(await fetch(site.at(path))).was_cut for path in ("/x", "/y")] == [False, True]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_the_limit_is_for_decompressed_bytes(coding: str, compress: type) -> None:
    body = compress(b"x" * (2 * MAX_SOURCE_BYTES), 1)
    async with open_site(x=Answer(body, more={"content-encoding": coding})) as site:
        page = await fetch(site.at("/x"))
    assert (page.raw, page.was_cut) == (b"x" * MAX_SOURCE_BYTES, True)


async def test_a_page_that_stops_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    async with open_site(x=Answer(b"some", is_held=True)) as site, trio.open_nursery() as nursery:
        said: list[str] = []

        async def visit() -> None:
            said.append(await failure(site.at("/x")))

        nursery.start_soon(visit)
        await site.holding.wait()
        for seconds, expected in ((pages.SOURCE_S - 1, []), (1, ["took longer than 30 s"])):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(seconds)
            await trio.testing.wait_all_tasks_blocked()
            assert said == expected
        assert site.open == 0


async def test_a_question_takes_no_time_of_the_source(mock_clock: trio.testing.MockClock) -> None:
    async with open_site(x=Answer(b"some")) as site:
        user = Asked(before=lambda: mock_clock.jump(1000))
        assert (await fetch(site.at("/x"), user)).raw == b"some"


@pytest.mark.parametrize("body", [b"", b"some of it"])
async def test_a_cancelled_fetch_closes_its_connection(body: bytes) -> None:
    async with open_site(x=Answer(body, is_held=True)) as site, trio.open_nursery() as nursery:
        nursery.start_soon(fetch, site.at("/x"))
        await site.holding.wait()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        assert site.open == 0


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(status=404), "answered 404 Not Found"),
        (Answer(status=799), "answered 799"),
        (Answer(status=304), "answered 304 Not Modified"),
        (Answer(kind="image/png"), "is 'image/png'; only text"),
        (Answer(b"\x7fELF\0\0", kind=""), "is not text"),
        (Answer(b"nonsense", more={"content-encoding": "gzip"}), "cannot be decompressed"),
        *((Answer(b"x", more={"content-encoding": each}), "is compressed as") for each in ("gzip, gzip", "br", "odd")),
        (Answer(b"ab", more={"content-length": "5"}), "ended too early"),
        (Answer(b"ab", more={"transfer-encoding": "chunked"}), "ended too early"),
    ],
)
async def test_an_unusable_answer_is_an_error(answer: Answer, says: str) -> None:
    async with open_site(x=answer) as site:
        assert says in await failure(site.at("/x"))


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ftp://127.0.0.1/x", "not an http or https address"),
        ("http://me:secret@127.0.0.1/", "a user name or a password"),
        ("http://me@127.0.0.1/", "a user name or a password"),
        ("http:///x", "not a valid address"),
        ("http://127.0.0.1:99999/", "not a valid address"),
        ("http://a b/", "not a valid address"),
        ("http://nobody.test/", "the name nobody.test was not found"),
        ("http://empty.test/", "cannot be reached: the name empty.test has no address"),
        (f"http://127.0.0.1/{'x' * 3000}", "more than 2000 characters"),
        ("http://127.0.0.1:{port}/", "cannot be reached: Connection refused"),
    ],
)
async def test_an_unreachable_address_is_an_error(names: Names, address: str, says: str) -> None:
    names.table["empty.test"] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert says in await failure(address.replace("{port}", str(taken.getsockname()[1])))


async def test_the_next_address_of_a_name_is_tried(names: Names) -> None:
    names.table["a.test"] = ["127.0.0.2", "127.0.0.1"]  # no server at the first
    async with open_site(x=Answer(b"x")) as site:
        assert (await fetch(site.at("/x", "a.test"))).raw == b"x"


async def test_a_certificate_must_be_trusted_and_match(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(site: Site, host: str) -> str:
        return site.at("/x", host, "https")

    certificate, tls = self_signed(tmp_path)
    async with open_site() as plain, open_site(tls, x=Answer(b"x")) as site:
        assert "no secure connection could be made" in await failure(at(plain, "a.test"))
        assert (await failure(at(site, "a.test"))).startswith("cannot be reached: its certificate is not valid")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert (await fetch(at(site, "a.test"))).raw == b"x"
        assert "is not valid" in await failure(at(site, "b.test"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
        assert "the trusted certificates cannot be read" in await failure(at(site, "a.test"))


async def test_a_proxy_of_the_environment_resolves_names(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_site() as site:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{site.port}")
        site.pages |= {"example.org/x": Answer(b"x"), "a.test/x": Answer(b"y")}
        user = Asked()
        assert (await fetch("http://example.org/x", user)).raw == b"x"
        assert (user.subjects, names.asked) == (["example.org"], [])
        monkeypatch.setenv("no_proxy", "a.test")
        assert (await fetch(site.at("/x", "a.test"))).raw == b"y"
        assert names.asked == ["a.test"]
