"""Fetching pages: bounds, redirects, failures, and that nothing is left behind."""

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
from support.site import Answer, Asked, Names, open_site

from chain.tools.research import pages
from chain.tools.research.addresses import Unreadable, host_of
from chain.tools.research.hosts import HostApprovals, Refused
from chain.tools.research.pages import MAX_SOURCE_BYTES, WebPage
from chain.version import VERSION


@pytest.fixture
async def names() -> Names:
    """Names that lead to this machine, whose user allowed that."""
    found = Names({name: ["127.0.0.1"] for name in ("a.test", "b.test", "c.test")})
    trio.socket.set_custom_hostname_resolver(found)
    return found


@pytest.fixture
def sockets() -> Iterator[None]:
    """Checks that no socket is left open."""
    before = _sockets()
    yield
    assert _sockets() <= before


def _sockets() -> int:
    links = (os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)


async def fetch(address: str, user: Asked | None = None, by_user: tuple[str, ...] = ()) -> WebPage:
    approvals = HostApprovals(user or Asked(), ())
    approvals.by_user = frozenset(map(host_of, by_user))
    return await pages.fetch(address, approvals)


async def fails(address: str, user: Asked | None = None) -> str:
    with pytest.raises(Unreadable) as caught:
        await fetch(address, user)
    return str(caught.value)


async def test_a_page_is_fetched_with_what_its_server_says_of_it(sockets: None) -> None:
    async with open_site(p=Answer(b"<p>x", "Text/HTML; Charset=KOI8-R")) as site:
        page = await fetch(site.at("/p#part"))
    assert (page.raw, page.kind, page.charset, page.was_cut) == (b"<p>x", "html", "KOI8-R", False)
    assert page.address.startswith(site.at("/p"))
    (head,) = site.heads
    assert head["user-agent"] == f"chain/{VERSION}"
    assert head["host"] == f"127.0.0.1:{site.port}"
    assert "cookie" not in head
    assert "authorization" not in head


async def test_cookies_are_not_kept() -> None:
    async with open_site(b=Answer(b"x")) as site:
        site.pages["/a"] = Answer(status=302, more={"location": "/b", "set-cookie": "a=b"})
        await fetch(site.at("/a"))
    assert [("cookie" in head) for head in site.heads] == [False, False]


# --------------------------------------------------------------------------------------------------------- redirects


async def test_a_redirect_on_one_host_is_followed_without_asking(names: Names) -> None:
    async with open_site(end=Answer(b"x")) as site:
        site.redirect("/a", "b")
        site.redirect("/b", "/end")
        user = Asked()
        page = await fetch(site.at("/a", "a.test"), user)
    assert page.address == site.at("/end", "a.test")
    assert user.subjects == ["a.test", "127.0.0.1"]


async def test_a_redirect_to_another_host_asks(names: Names) -> None:
    async with open_site(end=Answer(b"x")) as site:
        site.redirect("a.test/x", site.at("/end", "b.test"))
        user = Asked()
        assert (await fetch(site.at("/x", "a.test"), user)).address == site.at("/end", "b.test")
        assert user.subjects == ["a.test", "127.0.0.1", "b.test"]
        asked = len(site.asked)
        user = Asked({"b.test": "not there"})
        assert await fails(site.at("/x", "a.test"), user) == "redirects to b.test, which was refused: not there"
        assert site.asked[asked:] == ["a.test/x"], "nothing went to the host that was refused"


async def test_a_redirect_of_a_host_that_the_user_named_asks_all_the_same(names: Names) -> None:
    async with open_site(end=Answer(b"x")) as site:
        site.redirect("a.test/x", site.at("/end", "b.test"))
        user, address = Asked(), site.at("/x", "a.test")
        await fetch(address, user, by_user=(address,))
    assert user.subjects == ["127.0.0.1", "b.test"]


async def test_a_redirect_to_the_clouds_keys_asks_and_goes_nowhere_if_refused() -> None:
    async with open_site() as site:
        site.redirect("/x", "http://169.254.169.254/latest/meta-data/")
        user = Asked({"169.254.169.254": "no"})
        assert "169.254.169.254, which was refused" in await fails(site.at("/x"), user)


async def test_a_name_that_leads_elsewhere_than_it_did_is_asked_about_again(names: Names) -> None:
    """The name was approved; where it leads to was not."""
    async with open_site(x=Answer(b"x")) as site:
        user = Asked({"127.0.0.1": "no"})
        with pytest.raises(Refused, match="no"):
            await fetch(site.at("/x", "a.test"), user)
        assert not site.asked


async def test_no_name_is_looked_up_before_its_host_was_approved(names: Names) -> None:
    with pytest.raises(Refused):
        await fetch("http://secret-data.a.test/", Asked({"secret-data.a.test": "no"}))
    assert names.asked == []


async def test_redirects_in_a_circle_end() -> None:
    async with open_site() as site:
        site.redirect("/a", "/a")
        assert await fails(site.at("/a")) == f"redirects more than {pages.MAX_REDIRECTS} times"
        assert len(site.asked) == pages.MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("file:///etc/passwd", "not an http or https address"),
        ("http://user:secret@127.0.0.1/", "a user name or a password"),
        ("http://[", "not a valid address"),
        ("", "answered 302 Found"),
    ],
)
async def test_redirects_that_lead_nowhere(to: str, says: str) -> None:
    async with open_site() as site:
        site.redirect("/a", to)
        assert says in await fails(site.at("/a"))


# ------------------------------------------------------------------------------------------------------------ bounds


async def test_of_a_page_that_never_ends_the_first_part_is_read(sockets: None) -> None:
    async with open_site(x=Answer(is_endless=True)) as site:
        page = await fetch(site.at("/x"))
        assert (len(page.raw), page.was_cut) == (MAX_SOURCE_BYTES, True)
        await trio.testing.wait_all_tasks_blocked()
        assert site.open == 0


async def test_a_page_that_just_fits_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_SOURCE_BYTES", 1_000)
    async with open_site(x=Answer(b"x" * 1_000), y=Answer(b"x" * 1_001)) as site:
        assert not (await fetch(site.at("/x"))).was_cut
        assert (await fetch(site.at("/y"))).was_cut


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_what_is_counted_is_the_page_and_not_its_compressed_form(coding: str, sockets: None) -> None:
    bomb = b"x" * (2 * MAX_SOURCE_BYTES)
    body = gzip.compress(bomb, 1) if coding == "gzip" else zlib.compress(bomb, 1)
    async with open_site(x=Answer(body, more={"content-encoding": coding})) as site:
        page = await fetch(site.at("/x"))
    assert (page.raw, page.was_cut) == (b"x" * MAX_SOURCE_BYTES, True)


@pytest.mark.parametrize("coding", ["gzip, gzip", "br", "zstd", "odd"])
async def test_other_forms_of_compression_are_refused(coding: str) -> None:
    async with open_site(x=Answer(b"x", more={"content-encoding": coding})) as site:
        assert "is compressed as" in await fails(site.at("/x"))


async def test_a_page_that_stands_still_is_given_up_after_its_time(
    mock_clock: trio.testing.MockClock, sockets: None
) -> None:
    async with open_site(x=Answer(b"some", is_held=True)) as site, trio.open_nursery() as nursery:
        said: list[str] = []

        async def visit() -> None:
            said.append(await fails(site.at("/x")))

        nursery.start_soon(visit)
        await site.holding.wait()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(pages.SOURCE_S - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not said
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert said == ["took longer than 30 s"]
        assert site.open == 0


async def test_the_time_of_a_question_does_not_count(mock_clock: trio.testing.MockClock) -> None:
    async with open_site(x=Answer(b"some")) as site:
        user = Asked(before=lambda: mock_clock.jump(1000))
        assert (await fetch(site.at("/x"), user)).raw == b"some"


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(status=404), "answered 404 Not Found"),
        (Answer(status=503), "answered 503 Service Unavailable"),
        (Answer(status=799), "answered 799"),
        (Answer(status=304), "answered 304 Not Modified"),
        (Answer(kind="image/png"), "is 'image/png'; only text"),
        (Answer(kind="application/pdf"), "is 'application/pdf'"),
        (Answer(b"\x7fELF\0\0", kind=""), "is not text"),
        (Answer(b"nonsense", more={"content-encoding": "gzip"}), "cannot be decompressed"),
        (Answer(b"ab", more={"content-length": "5"}), "ended too early"),
        (Answer(b"ab", more={"transfer-encoding": "chunked"}), "ended too early"),
    ],
)
async def test_what_cannot_be_read_is_a_sentence(answer: Answer, says: str, sockets: None) -> None:
    async with open_site(x=answer) as site:
        assert says in await fails(site.at("/x"))


@pytest.mark.parametrize(
    ("kind", "is_html"),
    [
        ("text/markdown", False),
        ("application/json", False),
        ("application/atom+xml", False),
        ("text/xml", False),
        ("application/xhtml+xml", True),
        ("", True),
    ],
)
async def test_kinds_that_are_read(kind: str, is_html: bool) -> None:
    async with open_site(x=Answer(b"\n<p>x", kind)) as site:
        assert (await fetch(site.at("/x"))).kind == ("html" if is_html else "text")


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
        (f"http://127.0.0.1/{'x' * 3000}", "more than 2000 characters"),
    ],
)
async def test_addresses_that_lead_nowhere(names: Names, address: str, says: str) -> None:
    assert says in await fails(address)


async def test_a_name_without_an_address_is_not_connected_to_by_its_name(names: Names) -> None:
    names.table["a.test"] = []
    async with open_site(x=Answer(b"x")) as site:
        assert await fails(site.at("/x", "a.test")) == "cannot be reached: the name a.test has no address"
    assert names.asked == ["a.test"]


async def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        said = await fails(f"http://127.0.0.1:{taken.getsockname()[1]}/")
    assert said == "cannot be reached: Connection refused"


async def test_the_next_address_of_a_name_is_tried(names: Names) -> None:
    # Nobody listens on the site's port at the first.
    names.table["a.test"] = ["127.0.0.2", "127.0.0.1"]
    async with open_site(x=Answer(b"x")) as site:
        assert (await fetch(site.at("/x", "a.test"))).raw == b"x"


async def test_a_server_that_does_not_speak_tls() -> None:
    async with open_site() as site:
        assert "no secure connection could be made" in await fails(site.at("/x", scheme="https"))


# -------------------------------------------------------------------------------------------------------------- TLS


async def test_a_certificate_is_checked_against_the_name_and_not_the_address(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sockets: None
) -> None:
    certificate, tls = self_signed(tmp_path)
    async with open_site(tls, x=Answer(b"x")) as site:
        said = await fails(site.at("/x", "a.test", "https"))
        assert said.startswith("cannot be reached: its certificate is not valid")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert (await fetch(site.at("/x", "a.test", "https"))).raw == b"x"
        assert "is not valid" in await fails(site.at("/x", "b.test", "https"))


async def test_certificates_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    assert "the trusted certificates cannot be read" in await fails("https://127.0.0.1/")


# ----------------------------------------------------------------------------------------------------------- proxies


async def test_a_proxy_of_the_environment_is_asked_and_looks_names_up_itself(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_site() as site:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{site.port}")
        site.pages["example.org/x"] = Answer(b"x")
        user = Asked()
        assert (await fetch("http://example.org/x", user)).raw == b"x"
        assert user.subjects == ["example.org"]
        assert names.asked == []
        monkeypatch.setenv("no_proxy", "a.test")
        site.pages["a.test/x"] = Answer(b"y")
        assert (await fetch(site.at("/x", "a.test"))).raw == b"y"
        assert names.asked == ["a.test"]


# --------------------------------------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize("body", [b"", b"some of it"])
async def test_an_interrupt_in_mid_transfer_leaves_nothing(body: bytes, sockets: None) -> None:
    async with open_site(x=Answer(body, is_held=True)) as site, trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def visit() -> None:
            with scope:
                await fetch(site.at("/x"))

        nursery.start_soon(visit)
        await site.holding.wait()
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert scope.cancelled_caught
        assert site.open == 0
