"""Rejection of empty values on the command line, which are mistakes such as an unset variable.

If an empty value counted as "not given", a command would use the default cluster or directory.
NaN is rejected as well: it is within the bounds of every range of fractions.
"""

from collections.abc import Iterable
from math import isnan
from typing import Any, Final

import click

# Options for which an empty value has a meaning: an empty key, the text that is sent as null, an
# empty format, and the client id of clients without one.
MAY_BE_EMPTY: Final = frozenset(("key", "null", "form", "client_id"))
_CHECKED: Final = "is_refusing_empty_values"


def refuse_empty_values(command: click.Command) -> None:
    """Make all parameters of this command and its subcommands reject empty values and NaN."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            refuse_empty_values(below)
    if not getattr(command, _CHECKED, False):
        setattr(command, _CHECKED, True)
        for parameter in command.params:
            if takes_text(parameter):
                _refuse(parameter)


class InputFile(click.File):
    """Text file that exists, or - for standard input."""

    def __init__(self) -> None:
        super().__init__(encoding="utf-8")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":  # the file is opened before the callback of `refuse_empty_values`
            self.fail("the value is empty; specify a value", param, ctx)
        return super().convert(value, param, ctx)


def takes_text(parameter: click.Parameter) -> bool:
    """Return whether the parameter has a value, and an empty one is a mistake."""
    if not isinstance(parameter, click.Option):
        return True
    return not parameter.is_flag and parameter.name not in MAY_BE_EMPTY


def _refuse(parameter: click.Parameter) -> None:
    further = parameter.callback

    def check(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        values = value if isinstance(value, tuple | list) else (value,)
        if any(isinstance(each, float) and isnan(each) for each in values):
            raise click.BadParameter("nan is not a number.", ctx, parameter)
        if "" in values:
            ways: Iterable[str] = ("specify a value",)
            if not parameter.required:
                ways = (*ways, "omit it")
            raise click.BadParameter(f"the value is empty; {', or '.join(ways)}", ctx, parameter)
        return value if further is None else further(ctx, parameter, value)

    parameter.callback = check
