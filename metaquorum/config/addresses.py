"""Addresses of hosts as text: each has one by which it is known, whatever way it was written."""

from ipaddress import IPv6Address, ip_address

from metaquorum.runtime.whole_numbers import whole_number


def canonical(text: str) -> str:
    """As connections from that address are told apart; ValueError for what is no address.

    An IPv4 address that came in by a socket for both families (::ffff:192.0.2.1) is one of IPv4.
    """
    found = ip_address(text)
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(found)


def is_anywhere(host: str) -> bool:
    """Whether that is no host, but all addresses of this machine: 0.0.0.0, [::], or nothing."""
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return False


def counts_by_address(text: str) -> dict[str, int]:
    """From "ADDRESS:COUNT,ADDRESS:COUNT"; an address of IPv6 may be in brackets. ValueError."""
    counts = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = item.rpartition(":")
        if (number := whole_number(count, 2**31 - 1)) is None:
            raise ValueError(f"{item!r} is not ADDRESS:COUNT")
        try:
            address = canonical(host.strip("[]"))
        except ValueError:
            raise ValueError(f"{item!r} has no address of a host (names are not taken)") from None
        counts[address] = number
    return counts
