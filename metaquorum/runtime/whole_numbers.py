"""Parsing of whole numbers from clients, configs and command lines."""


def whole_number(text: str, most: int) -> int | None:
    """Return the number in ASCII digits; None if `text` is not one or the number exceeds `most`.

    `int` alone does not suffice: it accepts other digits, signs and underscores, and raises
    ValueError for more than 4300 digits, which a client may send.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    significant = text.lstrip("0") or "0"
    if len(significant) > len(str(most)):
        return None
    number = int(significant)
    return number if number <= most else None
