"""Whole numbers as text: of clients, of configs, of command lines."""


def whole_number(text: str, most: int) -> int | None:
    """The number that `text` writes in ASCII digits; None if it is none, or above `most`.

    `int` alone is not enough: it takes other digits, signs and underscores, and raises ValueError
    for more than 4300 digits, which a client may send.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    significant = text.lstrip("0") or "0"
    if len(significant) > len(str(most)):
        return None
    number = int(significant)
    return number if number <= most else None
