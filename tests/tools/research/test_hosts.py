"""Which hosts may be visited, and which have to be asked about, without a network."""

from ipaddress import ip_address

import pytest
from support.site import Asked

from chain.tools.research.addresses import is_public, parse_ip
from chain.tools.research.hosts import HostApprovals, Refused, covers


@pytest.mark.parametrize(
    ("entry", "host", "is_covered"),
    [
        ("example.org", "example.org", True),
        ("example.org", "WWW.Example.org.", True),
        ("*.example.org", "www.example.org", True),
        ("example.org", "badexample.org", False),
        ("example.org", "example.org.evil.net", False),
        ("www.example.org", "example.org", False),
        ("org", "example.org", False),
        ("localhost", "localhost", True),
        ("localhost", "a.localhost", False),
        ("10.0.0.5", "10.0.0.5", True),
        ("0.0.5", "10.0.0.5", False),
        ("::1", "[::1]", True),
        ("", "example.org", False),
        (".", "example.org", False),
    ],
)
def test_what_an_entry_covers(entry: str, host: str, is_covered: bool) -> None:
    assert covers([entry], host) == is_covered


@pytest.mark.parametrize(
    "address",
    """127.0.0.1 10.1.2.3 192.168.0.1 169.254.169.254 0.0.0.0 100.100.100.200 224.0.0.1 ::1 :: fe80::1 fd00:ec2::254
    ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 2002:7f00:1:: fec0::2 ::7f00:1 ::808:808 64:ff9b:1::a9fe:a9fe
    64:ff9b:1:0:a:0:108:808 2001:db8::1 3fff::1 2001:0:4136:e378:8000:63bf:f5ff:fffe 2606:2800::5efe:7f00:1
    2606:2800::200:5efe:a9fe:a9fe 4000::1 ff0e::1""".split(),  # noqa: SIM905
)
def test_addresses_that_are_not_public(address: str) -> None:
    found = parse_ip(address)
    assert found is not None
    assert not is_public(found)


@pytest.mark.parametrize(
    "address",
    """93.184.215.14 2606:2800:21f:cb07:6820:80da:af6b:8b2c 2001:4860:4860::8888 2a00::1 2606:2800::5efe:808:808
    64:ff9b::808:808 2002:808:808::""".split(),  # noqa: SIM905
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    found = parse_ip(address)
    assert found is not None
    assert is_public(found)


async def allowed(approvals: HostApprovals, host: str, *found: str) -> bool:
    try:
        await approvals.check_host(host, [f"http://{host}/"])
        await approvals.check_ips(host, [ip_address(each) for each in found])
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "leads_to", "by_user", "asked"),
    [
        ("example.org", "93.184.215.14", (), []),
        ("other.org", "93.184.215.14", (), ["other.org"]),
        ("other.org", "93.184.215.14", ("other.org",), []),
        ("example.org", "127.0.0.1", (), ["127.0.0.1"]),
        ("example.org", "169.254.169.254", (), ["169.254.169.254"]),
        ("example.org", "10.0.0.5", (), []),
        ("other.org", "10.0.0.6", (), ["other.org", "10.0.0.6"]),
        ("wiki.corp", "10.0.0.6", ("wiki.corp",), []),
        *(("wiki.corp", local, ("wiki.corp",), []) for local in ("172.16.0.1", "192.168.0.1", "100.64.0.1", "fd00::1")),
        *(
            ("wiki.corp", other, ("wiki.corp",), [other])
            for other in ("169.254.169.254", "127.0.0.1", "::1", "0.0.0.0", "fe80::1", "fec0::2", "::7f00:1", "::a00:5")
        ),
        ("localhost", "127.0.0.1", (), ["localhost"]),
    ],
)
async def test_who_is_asked_about_what(host: str, leads_to: str, by_user: tuple[str, ...], asked: list[str]) -> None:
    user = Asked()
    approvals = HostApprovals(user, ("example.org", "10.0.0.5"))
    approvals.by_user = frozenset(by_user)
    assert await allowed(approvals, host, leads_to)
    assert user.subjects == asked
    assert all(preview.always == "subject" for preview in user.previews)


async def test_one_public_address_does_not_excuse_another() -> None:
    user = Asked({"127.0.0.1": "no"})
    assert not await allowed(HostApprovals(user, ("example.org",)), "example.org", "93.184.215.14", "127.0.0.1")


async def test_what_was_decided_holds_and_what_was_withdrawn_is_asked_again() -> None:
    user = Asked({"a.org": "y", "b.org": "not that one", "c.org": "?"})
    approvals = HostApprovals(user, ())
    for _ in range(2):
        assert await allowed(approvals, "a.org")
        assert not await allowed(approvals, "b.org")
        assert not await allowed(approvals, "c.org")
    assert user.subjects == ["a.org", "b.org", "c.org", "c.org"]


async def test_a_question_shows_what_the_host_is_wanted_for() -> None:
    user = Asked()
    await HostApprovals(user, ()).check_host("a.org", [f"http://a.org/{n}" for n in range(9)])
    assert user.previews[0].text.splitlines() == [
        "research visits a.org:",
        *(f"http://a.org/{n}" for n in range(5)),
        "and 4 more there",
    ]
