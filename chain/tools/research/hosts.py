"""Approval of the hosts that a call of ``research`` visits.

**Names.** A host is visited if ``tools.research.hosts`` covers it, if the user's own line named it, or if the user
approves. An entry ``example.org`` covers that host and its subdomains. An entry without a dot (``localhost``) and an IP
address cover only themselves, so that ``org`` does not cover all its domains. Ports do not matter. No name is resolved
before its approval: resolving a name that a model made up already sends its text to the owner of the domain.

**IP addresses.** The owner of a name can change its IP addresses even after the approval: to 127.0.0.1, or to
169.254.169.254, where clouds hand out keys (DNS rebinding). So an IP address that is not public needs an entry or an
approval of its own, and connections are made only to checked addresses. A name from the user's own line, as in ``also
check wiki.corp``, may resolve to the local network without a further approval, but not to this machine or any other
address that is not public. ``localhost`` always means this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network

from chain.text.wording import truncate
from chain.tools.file_versions import digest
from chain.tools.research.addresses import IPAddress, is_public, normalize_host, parse_ip
from chain.tools.tool import Asking, Preview

_LOCAL = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")))
"""Local networks. 100.64.0.0/10 is used by internet providers, and by private networks over the internet."""

MAX_SHOWN_URLS = 5
"""The most URLs in a question. They show the user why the host is to be visited."""

MAX_URL_CHARS = 500
"""Characters of each URL in a question."""


class HostRefused(Exception):
    """The refusal to visit a host. The message is the reason."""


def covers(entries: Iterable[str], host: str) -> bool:
    """Return whether an entry is this host or one of its parent domains. An entry without a dot has no subdomains."""
    host = normalize_host(host)
    is_name = parse_ip(host) is None
    return any(
        host == entry or (is_name and "." in entry and host.endswith(f".{entry}"))
        for entry in map(normalize_host, entries)
    )


class HostApprovals:
    """The approvals of the hosts that one call of ``research`` visits. A decision is valid until the call ends.

    ``user_hosts`` are the hosts that the user's own lines named.
    """

    def __init__(self, asking: Asking, entries: Sequence[str]) -> None:
        self.user_hosts: frozenset[str] = frozenset()
        self._asking = asking
        self._entries = entries
        self._decisions: dict[str, str] = {}
        """For each host or IP address, the reason for its refusal; empty if it was approved."""

    async def check_host(self, host: str, urls: Sequence[str]) -> None:
        """Ask the user to approve a host if needed, and show these URLs. Raise ``HostRefused`` if the user refuses."""
        if covers(self._entries, host) or normalize_host(host) in self.user_hosts:
            return
        shown = [truncate(url, MAX_URL_CHARS) for url in urls[:MAX_SHOWN_URLS]]
        if len(urls) > MAX_SHOWN_URLS:
            shown.append(f"and {len(urls) - MAX_SHOWN_URLS} more pages there")
        await self._ask(host, "\n".join([f"research visits {host}:", *shown]))

    async def check_ips(self, host: str, ips: Iterable[IPAddress]) -> None:
        """Ask the user to approve IP addresses that are not public. Raise ``HostRefused`` if one is refused."""
        name = normalize_host(host)
        if name == "localhost" or name.endswith(".localhost"):  # RFC 6761
            return
        for ip in ips:
            is_users = name in self.user_hosts and any(ip in network for network in _LOCAL)
            if is_public(ip) or is_users or covers(self._entries, str(ip)):
                continue
            what = "of this machine" if ip.is_loopback else "that is not public"
            await self._ask(str(ip), f"{host} leads to {ip}, an address {what}. research visits it.")

    async def _ask(self, subject: str, text: str) -> None:
        key = normalize_host(subject)
        if key not in self._decisions:
            preview = Preview(text=text, subject=subject, digest=digest(text.encode()), always="subject")
            verdict = await self._asking.approve(preview)
            if verdict.withdrawn:
                raise HostRefused(verdict.reason.strip() or "no one answered")  # not stored: asked again
            self._decisions[key] = "" if verdict.allowed else verdict.reason.strip() or "the user refused"
        if reason := self._decisions[key]:
            raise HostRefused(reason)
