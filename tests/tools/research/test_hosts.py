"""Which hosts and IP addresses need an approval, and how long an answer is valid."""

from ipaddress import ip_address

import pytest
from support.site import Asked

from chain.tools.research.addresses import is_public, parse_ip
from chain.tools.research.hosts import HostApprovals, HostRefused, covers


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
def test_an_entry_covers_a_host_and_its_subdomains(entry: str, host: str, is_covered: bool) -> None:
    assert covers([entry], host) == is_covered


PUBLIC = """93.184.215.14 2606:2800:21f:cb07:6820:80da:af6b:8b2c 2001:4860:4860::8888 2a00::1 2606:2800::5efe:808:808
64:ff9b::808:808 2002:808:808::"""
OTHERS = """127.0.0.1 10.1.2.3 192.168.0.1 169.254.169.254 0.0.0.0 100.100.100.200 224.0.0.1 ::1 :: fe80::1
fd00:ec2::254 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 2002:7f00:1:: fec0::2 ::7f00:1 ::808:808 64:ff9b:1::a9fe:a9fe
64:ff9b:1:0:a:0:108:808 2001:db8::1 3fff::1 2001:0:4136:e378:8000:63bf:f5ff:fffe 2606:2800::5efe:7f00:1
2606:2800::200:5efe:a9fe:a9fe 4000::1 ff0e::1"""


def test_only_addresses_of_the_internet_are_public() -> None:
    ips = [parse_ip(each) for each in (*PUBLIC.split(), *OTHERS.split())]
    assert [str(ip) for ip in ips if ip is not None and is_public(ip)] == [
        str(parse_ip(each)) for each in PUBLIC.split()
    ]
    assert None not in ips


async def is_approved(approvals: HostApprovals, host: str, *ips: str) -> bool:
    try:
        await approvals.check_host(host, [f"http://{host}/"])
        await approvals.check_ips(host, [ip_address(each) for each in ips])
    except HostRefused:
        return False
    return True


LOCAL = ("10.0.0.6", "172.16.0.1", "192.168.0.1", "100.64.0.1", "fd00::1")
NOT_PUBLIC = ("169.254.169.254", "127.0.0.1", "::1", "0.0.0.0", "fe80::1", "fec0::2", "::7f00:1", "::a00:5")


@pytest.mark.parametrize(
    ("host", "ip", "by_user", "asked"),
    [
        ("example.org", "93.184.215.14", False, []),
        ("other.org", "93.184.215.14", False, ["other.org"]),
        ("other.org", "93.184.215.14", True, []),
        ("example.org", "127.0.0.1", False, ["127.0.0.1"]),
        ("example.org", "10.0.0.5", False, []),
        ("other.org", "10.0.0.6", False, ["other.org", "10.0.0.6"]),
        ("localhost", "127.0.0.1", False, ["localhost"]),
        *(("wiki.corp", ip, True, []) for ip in LOCAL),
        *(("wiki.corp", ip, True, [ip]) for ip in NOT_PUBLIC),
    ],
)
async def test_unknown_hosts_and_private_addresses_need_approval(
    host: str, ip: str, by_user: bool, asked: list[str]
) -> None:
    user = Asked()
    approvals = HostApprovals(user, ("example.org", "10.0.0.5"))
    approvals.by_user = frozenset([host] if by_user else [])
    assert await is_approved(approvals, host, ip)
    assert user.subjects == asked
    assert all(preview.always == "subject" for preview in user.previews)


async def test_each_address_of_a_name_is_checked() -> None:
    approvals = HostApprovals(Asked({"127.0.0.1": "no"}), ("example.org",))
    assert not await is_approved(approvals, "example.org", "93.184.215.14", "127.0.0.1")


async def test_an_answer_is_valid_unless_withdrawn() -> None:
    user = Asked({"a.org": "y", "b.org": "not that one", "c.org": "?"})
    approvals = HostApprovals(user, ())
    for _ in range(2):
        assert [await is_approved(approvals, host) for host in ("a.org", "b.org", "c.org")] == [True, False, False]
    assert user.subjects == ["a.org", "b.org", "c.org", "c.org"]


async def test_a_question_shows_the_first_urls() -> None:
    user = Asked()
    await HostApprovals(user, ()).check_host("a.org", [f"http://a.org/{n}" for n in range(9)])
    rows = ["research visits a.org:", *(f"http://a.org/{n}" for n in range(5)), "and 4 more there"]
    assert user.previews[0].text.splitlines() == rows
