"""What a person who starts a node may get wrong, and how an address is read."""

from metaquorum.runtime.whole_numbers import whole_number


class UsageError(Exception):
    """A mistake of the person who starts the node; the message is the sentence to show."""


def address(text: str, option: str) -> tuple[str, int]:
    """Host and port; UsageError."""
    host, colon, port = text.rpartition(":")
    number = whole_number(port, 65_535) if colon else None
    if number is None:
        raise UsageError(f"{option} takes HOST:PORT with a port from 0 to 65535, not {text!r}")
    return without_brackets(host, option) or "0.0.0.0", number  # noqa: S104


def without_brackets(host: str, option: str) -> str:
    """[::1] is ::1; UsageError."""
    inner = host.removeprefix("[").removesuffix("]")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if "[" in inner or "]" in inner or (inner != host and not (is_bracketed and ":" in inner)):
        raise UsageError(f"{option} takes an address of IPv6 as [::1], not as {host!r}")
    return inner


def address_text(host: str, port: int) -> str:
    """The other way round."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
