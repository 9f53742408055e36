"""Which hosts and IP addresses need an approval, and how long an answer is valid."""

from ipaddress import ip_address

import pytest
from support.site import User

from chain.tools.research.addresses import IPAddress, is_public, parse_ip
from chain.tools.research.hosts import HostApprovals, HostRefused, covers


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        pytest.param("example.org", "WWW.Example.org.", id="subdomain in capitals with a final dot"),
        pytest.param("*.example.org", "www.example.org", id="entry with a wildcard"),
        pytest.param("localhost", "localhost", id="entry without a dot"),
        pytest.param("10.0.0.5", "10.0.0.5", id="IPv4 address"),
        pytest.param("::1", "[::1]", id="IPv6 address in brackets"),
    ],
)
def test_an_entry_covers_a_host_and_its_subdomains(entry: str, host: str) -> None:
    assert covers([entry], host)


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        pytest.param("example.org", "badexample.org", id="host that only ends like the entry"),
        pytest.param("example.org", "example.org.evil.net", id="host that only begins like the entry"),
        pytest.param("www.example.org", "example.org", id="parent domain"),
        pytest.param("org", "example.org", id="subdomain of an entry without a dot"),
        pytest.param("0.0.5", "10.0.0.5", id="end of an IP address"),
        pytest.param(".", "example.org", id="dot"),
    ],
)
def test_an_entry_covers_no_other_host(entry: str, host: str) -> None:
    assert not covers([entry], host)


PUBLIC = {
    "IPv4": "93.184.215.14",
    "IPv6": "2606:2800:21f:cb07:6820:80da:af6b:8b2c 2001:4860:4860::8888 2a00::1",
    "tunnelled to 8.8.8.8": "2606:2800::5efe:808:808 64:ff9b::808:808 2002:808:808::",
}
NOT_PUBLIC = {
    "this machine": "127.0.0.1 ::1 0.0.0.0 ::",
    "tunnelled to 127.0.0.1": "2002:7f00:1:: ::7f00:1 2606:2800::5efe:7f00:1",
    "private": "10.1.2.3 192.168.0.1 100.100.100.200 fd00:ec2::254 fec0::2",
    "link-local": "169.254.169.254 fe80::1",
    "tunnelled to 169.254.169.254": "::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 2606:2800::200:5efe:a9fe:a9fe",
    "local translation": "64:ff9b:1::a9fe:a9fe 64:ff9b:1:0:a:0:108:808",
    "multicast": "224.0.0.1 ff0e::1",
    "documentation": "2001:db8::1 3fff::1",
    "deprecated or unassigned": "::808:808 2001:0:4136:e378:8000:63bf:f5ff:fffe 4000::1",
}


def parse(address: str) -> IPAddress:
    ip = parse_ip(address)
    assert ip is not None
    return ip


@pytest.mark.parametrize("addresses", PUBLIC.values(), ids=PUBLIC)
def test_addresses_of_the_internet_are_public(addresses: str) -> None:
    assert all(is_public(parse(address)) for address in addresses.split())


@pytest.mark.parametrize("addresses", NOT_PUBLIC.values(), ids=NOT_PUBLIC)
def test_other_addresses_are_not_public(addresses: str) -> None:
    assert not any(is_public(parse(address)) for address in addresses.split())


async def is_approved(approvals: HostApprovals, host: str, *ips: str) -> bool:
    try:
        await approvals.check_host(host, [f"http://{host}/"])
        await approvals.check_ips(host, map(ip_address, ips))
    except HostRefused:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "ip", "asked_about"),
    [
        pytest.param("example.org", "93.184.215.14", [], id="configured host"),
        pytest.param("example.org", "127.0.0.1", ["127.0.0.1"], id="configured host that leads to this machine"),
        pytest.param("example.org", "10.0.0.5", [], id="configured address"),
        pytest.param("other.org", "93.184.215.14", ["other.org"], id="unknown host"),
        pytest.param("other.org", "10.0.0.6", ["other.org", "10.0.0.6"], id="unknown host and private address"),
        pytest.param("localhost", "127.0.0.1", ["localhost"], id="localhost"),
    ],
)
async def test_unknown_hosts_and_private_addresses_need_approval(host: str, ip: str, asked_about: list[str]) -> None:
    user = User()
    assert await is_approved(HostApprovals(user, ("example.org", "10.0.0.5")), host, ip)
    assert user.asked_about == asked_about
    assert all(preview.always == "subject" for preview in user.previews)


# A host named by the user may have the first without approval. The last two are 127.0.0.1 and 10.0.0.5 in IPv6.
LOCAL = "10.0.0.6 172.16.0.1 192.168.0.1 100.64.0.1 fd00::1"
NEITHER_LOCAL_NOR_PUBLIC = "169.254.169.254 127.0.0.1 ::1 0.0.0.0 fe80::1 fec0::2 ::7f00:1 ::a00:5"


@pytest.mark.parametrize(
    ("ip", "needs_approval"),
    [(ip, False) for ip in ["93.184.215.14", *LOCAL.split()]] + [(ip, True) for ip in NEITHER_LOCAL_NOR_PUBLIC.split()],
)
async def test_host_of_the_user_may_be_local(ip: str, needs_approval: bool) -> None:
    user = User()
    approvals = HostApprovals(user, ())
    approvals.user_hosts = frozenset(["wiki.corp"])
    assert await is_approved(approvals, "wiki.corp", ip)
    assert user.asked_about == ([ip] if needs_approval else [])


async def test_each_address_of_a_name_is_checked() -> None:
    approvals = HostApprovals(User({"127.0.0.1": "no"}), ("example.org",))
    assert not await is_approved(approvals, "example.org", "93.184.215.14", "127.0.0.1")


async def test_an_answer_is_valid_unless_withdrawn() -> None:
    withdraw = "?"  # the answer with which ``User`` withdraws the question
    user = User({"allowed.org": "y", "refused.org": "not that one", "withdrawn.org": withdraw})
    approvals = HostApprovals(user, ())
    for _ in range(2):
        assert await is_approved(approvals, "allowed.org")
        assert not await is_approved(approvals, "refused.org")
        assert not await is_approved(approvals, "withdrawn.org")
    assert user.asked_about == ["allowed.org", "refused.org", "withdrawn.org", "withdrawn.org"]


async def test_a_question_shows_the_first_urls() -> None:
    user = User()
    await HostApprovals(user, ()).check_host("a.org", [f"http://a.org/{n}" for n in range(9)])
    rows = ["research visits a.org:", *(f"http://a.org/{n}" for n in range(5)), "and 4 more pages there"]
    assert user.previews[0].text.splitlines() == rows
