"""Which network addresses are public: where a submission that is not trusted may connect to.

An address is judged after the name was resolved, and all of a name's addresses are: a name is no promise.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

__all__ = ["PrivateAddress", "check_host", "is_public"]

_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""All that IANA has given out. `is_global` is true of more, such as fec0::/10, which was local to a site."""


class PrivateAddress(Exception):
    """The address is not public: loopback, link-local, a private network, or reserved."""


def is_public(address: str) -> bool:
    """Whether an IP address can be reached from everywhere. One that wraps another (IPv4 in IPv6) is judged
    by what is inside as well. Raises ValueError for what is no address."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        inner = _inner(ip)
        if inner is not None and not is_public(str(inner)):
            return False
        if ip.ipv4_mapped is not None or ip in _NAT64:
            return True
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def _inner(ip: IPv6Address) -> IPv4Address | None:
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    teredo = ip.teredo
    return ip.ipv4_mapped or ip.sixtofour or (teredo[1] if teredo is not None else None)


async def check_host(host: str, port: int) -> list[str]:
    """The addresses of a host, in the resolver's order; every one is public.

    Raises PrivateAddress when one is not, OSError when the name does not resolve.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
    for address in addresses:
        if not is_public(address):
            raise PrivateAddress(f"{host} has the address {address}, which is not public")
    return addresses
