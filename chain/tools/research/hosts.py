"""Which hosts a research may visit, and who is asked.

**Names.** A host is visited if ``hosts`` of the configuration covers it, if the user's own line named it, or if the
user approves. An entry ``example.org`` covers that host and all below it (``www.example.org``): whoever owns a domain
decides what is below it. An entry without a dot (``localhost``) and an IP address cover exactly themselves, so that
``org`` is not half of the net. Ports do not matter. Nothing is looked up before that: a lookup of a name that a model
made up already carries what is in the name to whoever owns the domain.

**Where names lead.** Who owns a name decides from moment to moment which address it leads to, also after it was
approved: to 127.0.0.1, to a router, or to 169.254.169.254, where clouds hand out keys (DNS rebinding). So a name that
leads to an address which is not public counts as that address, and needs it among ``hosts``, or its own approval. The
connection is then made to the very addresses that were looked at. A name from the user's own line may lead into the
local network, since who says ``also check wiki.corp`` means that; but not to this machine or to any other address that
is not public, which nobody means by a name. ``localhost`` always means this machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from chain.text.wording import beginning
from chain.tools.seen import digest
from chain.tools.tool import Asking, Preview

Address: TypeAlias = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")

_UNICAST = IPv6Network("2000::/3")
"""All that was given away of IPv6 (IANA). ``is_global`` is also true of what is left over, and of uses that were ended:
site-local addresses (fec0::/10), IPv4-compatible ones (::/96), on some Pythons local NAT64 (64:ff9b:1::/48)."""

_DOCUMENTATION = IPv6Network("3fff::/20")
"""Of RFC 9637, which not every Python knows."""

_ISATAP = 0x5EFE
"""What stands before the IPv4 address in the second half of an address that is tunnelled to it (RFC 5214)."""

_LOCAL = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")))
"""Local networks. 100.64.0.0/10 is that of providers and of private networks made over the internet."""

MAX_SHOWN_ADDRESSES = 5
"""Addresses that a question shows: they tell what the host is wanted for."""

MAX_ADDRESS_CHARS = 500
"""Characters of each."""


class Refused(Exception):
    """A host may not be visited; the message is the reason."""


def covers(hosts: Iterable[str], host: str) -> bool:
    """Whether one of the entries is this host or, if it is a domain's name, a domain that the host is in."""
    host = folded(host)
    is_name = as_address(host) is None
    return any(
        host == entry or (is_name and "." in entry and host.endswith(f".{entry}")) for entry in map(folded, hosts)
    )


def folded(host: str) -> str:
    """A host in the form in which two are compared."""
    return host.strip().strip("[]").casefold().removeprefix("*.").strip(".")


def as_address(host: str) -> Address | None:
    """The IP address that a host is; ``None`` for a name. One that stands inside another is that one."""
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found in _NAT64:
            return IPv4Address(int(found) & 0xFFFF_FFFF)
        return found.ipv4_mapped or found.sixtofour or found
    return found


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet, and not of this machine, its network or a special purpose."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    if address not in _UNICAST or address in _DOCUMENTATION or not address.is_global:
        return False
    # The two bits say whether the IPv4 address behind them is unique.
    is_isatap = (int(address) >> 32) & 0xFCFF_FFFF == _ISATAP
    return not is_isatap or is_public(IPv4Address(int(address) & 0xFFFF_FFFF))


def is_this_machine(host: str) -> bool:
    """Whether a name means this machine by its definition (RFC 6761)."""
    host = folded(host)
    return host == "localhost" or host.endswith(".localhost")


class Permits:
    """Which hosts one call may visit. What was decided holds until its end, for every address of the host."""

    def __init__(self, asking: Asking, hosts: Collection[str]) -> None:
        self._asking = asking
        self._hosts = hosts
        self._granted: set[str] = set()
        self._refused: dict[str, str] = {}

    async def of_host(self, host: str, by_user: Collection[str], wanted: list[str]) -> None:
        """Returns if a host may be visited; ``wanted`` are the addresses there. Raises ``Refused``."""
        if covers(self._hosts, host) or folded(host) in map(folded, by_user):
            return
        listed = [beginning(each, MAX_ADDRESS_CHARS) for each in wanted[:MAX_SHOWN_ADDRESSES]]
        if len(wanted) > MAX_SHOWN_ADDRESSES:
            listed.append(f"and {len(wanted) - MAX_SHOWN_ADDRESSES} more there")
        await self._ask(host, "\n".join([f"research visits {host}:", *listed]))

    async def of_target(self, host: str, found: Iterable[Address], by_user: Collection[str]) -> None:
        """Returns if a name that may be visited may lead to these addresses. Raises ``Refused``."""
        if is_this_machine(host):
            return
        is_users = folded(host) in map(folded, by_user)
        for address in found:
            if is_public(address) or covers(self._hosts, str(address)):
                continue
            if is_users and any(address in network for network in _LOCAL):
                continue
            what = "of this machine" if address.is_loopback else "that is not public"
            await self._ask(str(address), f"{host} leads to {address}, an address {what}. research visits it.")

    async def _ask(self, subject: str, text: str) -> None:
        key = folded(subject)
        if key in self._granted:
            return
        if key not in self._refused:
            preview = Preview(text=text, subject=subject, digest=digest(text.encode()), always="subject")
            verdict = await self._asking.approve(preview)
            if verdict.allowed:
                self._granted.add(key)
                return
            reason = verdict.reason.strip() or ("nobody decided" if verdict.withdrawn else "the user refused")
            if verdict.withdrawn:
                raise Refused(reason)  # nobody decided, so the next source asks again
            self._refused[key] = reason
        raise Refused(self._refused[key])
