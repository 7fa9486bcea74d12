"""Usage errors of mq-server, and the parsing of addresses."""

from metaquorum.runtime.whole_numbers import whole_number


class UsageError(Exception):
    """Raised if options or configs are invalid; the message is shown to the user."""


def address(text: str, option: str) -> tuple[str, int]:
    """Parse HOST:PORT. Raises UsageError if it is malformed."""
    host, colon, port = text.rpartition(":")
    number = whole_number(port, 65_535) if colon else None
    if number is None:
        raise UsageError(f"{option} takes HOST:PORT with a port from 0 to 65535, not {text!r}")
    return without_brackets(host, option) or "0.0.0.0", number  # noqa: S104


def without_brackets(host: str, option: str) -> str:
    """Return the host without the brackets of an IPv6 address ([::1]).

    Raises UsageError if they do not match.
    """
    inner = host.removeprefix("[").removesuffix("]")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if "[" in inner or "]" in inner or (inner != host and not (is_bracketed and ":" in inner)):
        raise UsageError(f"{option} takes an IPv6 address as [::1], not as {host!r}")
    return inner


def address_text(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
