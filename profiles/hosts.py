"""Where a URL leads: its origin, and whether that is on this machine or network."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

Origin = tuple[str, str, int]  # scheme, host, port

_LOCAL_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/32", "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
        *("::/128", "::1/128", "fc00::/7", "fe80::/10"),
    )
)
_PLAIN_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> Origin:
    """(scheme, host, port) in lower case, with the scheme's own port filled in. Raises ValueError on a bad URL."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not host:
        raise ValueError("not an http(s) URL with a host")
    return scheme, host, _PORTS[scheme] if parts.port is None else parts.port


def is_local(url: str) -> bool:
    """True for loopback, private and link-local address literals, localhost, *.localhost and *.local; else False.

    Names are not resolved, and an odd spelling of an address (127.1) is not local: in doubt the cautious answer.
    """
    try:
        _, host, _ = origin(url)
    except ValueError:
        return False
    if "\\" in url or not _PLAIN_HOST.fullmatch(host):
        return False
    if host == "localhost" or host.endswith((".localhost", ".local")):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in _LOCAL_NETWORKS)
