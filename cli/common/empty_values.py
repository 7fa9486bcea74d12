"""An empty value on a command line is a mistake (a variable that is not set, say): it is refused.

Taken for "not given", it would lead a command to another cluster or directory than was meant.
"""

from collections.abc import Iterable
from typing import Any, Final

import click

# Options where nothing is something: an empty key, what is to be sent as null, no text at all for a
# record, and the client id of who gives none.
MAY_BE_EMPTY: Final = frozenset(("key", "null", "form", "client_id"))
_CHECKED: Final = "is_refusing_empty_values"


def refuse_empty_values(command: click.Command) -> None:
    """No parameter of this command, or of those below it, is taken with an empty value."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            refuse_empty_values(below)
    if not getattr(command, _CHECKED, False):
        setattr(command, _CHECKED, True)
        for parameter in command.params:
            if takes_text(parameter):
                _refuse(parameter)


def takes_text(parameter: click.Parameter) -> bool:
    """A value may be given, and an empty one would make no sense."""
    if not isinstance(parameter, click.Option):
        return True
    return not parameter.is_flag and parameter.name not in MAY_BE_EMPTY


def _refuse(parameter: click.Parameter) -> None:
    further = parameter.callback

    def check(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if "" in (value if isinstance(value, tuple | list) else (value,)):
            ways: Iterable[str] = ("give it a value",)
            if not parameter.required:
                ways = (*ways, "leave it out")
            raise click.BadParameter(f"it is empty; {', or '.join(ways)}", ctx, parameter)
        return value if further is None else further(ctx, parameter, value)

    parameter.callback = check
