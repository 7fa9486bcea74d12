"""IP addresses as text, in one canonical form for each address."""

from ipaddress import IPv6Address, ip_address

from metaquorum.runtime.whole_numbers import whole_number


def canonical(text: str) -> str:
    """Return the canonical text of an IP address. Raises ValueError if `text` is not one.

    An IPv4 address mapped to IPv6 (::ffff:192.0.2.1, as a dual-stack socket reports it) becomes
    the IPv4 address.
    """
    found = ip_address(text)
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(found)


def is_anywhere(host: str) -> bool:
    """Return whether `host` means all addresses of this machine: 0.0.0.0, [::] or empty."""
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return False


def counts_by_address(text: str) -> dict[str, int]:
    """Return the counts of "ADDRESS:COUNT,ADDRESS:COUNT" by canonical address.

    An IPv6 address may be in brackets. Raises ValueError for any other text.
    """
    counts = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = item.rpartition(":")
        if (number := whole_number(count, 2**31 - 1)) is None:
            raise ValueError(f"{item!r} is not ADDRESS:COUNT")
        try:
            address = canonical(host.strip("[]"))
        except ValueError:
            raise ValueError(
                f"{item!r} does not begin with an IP address; host names are not supported"
            ) from None
        counts[address] = number
    return counts
