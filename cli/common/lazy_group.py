"""Command groups that import the module of a command when the command is used."""

import errno
import importlib
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import click

from metaquorum.cli.common.empty_values import refuse_empty_values
from metaquorum.cli.common.output import printable
from metaquorum.cli.common.refused_output import discard_refused_output

NOT_WRITTEN: Final = 1


class LazyGroup(click.Group):
    """Command group with late imports. `late`: `module:attribute` by command name."""

    def __init__(self, *args: Any, late: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._late = late
        refuse_empty_values(self)

    def main(self, *args: Any, **attributes: Any) -> Any:
        """Run the program and exit. Output that cannot be written is a failure of the command.

        Nothing is printed about a reader that has closed the pipe, as `head` does.
        """
        try:
            return super().main(*args, **attributes)
        except OSError as error:
            if discard_refused_output() is None and not _is_printing(error):
                raise
            _end_without_output(error, NOT_WRITTEN)
        except SystemExit as end:
            if (refused := discard_refused_output()) is not None:
                _end_without_output(refused, end.code or NOT_WRITTEN)
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._late]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._late:
            own = super().get_command(ctx, cmd_name)
            if own is not None:
                refuse_empty_values(own)
            return own
        module, _, attribute = self._late[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        refuse_empty_values(command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the messages of its errors are escaped for terminals."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            lines = map(printable, error.message.split("\n"))
            error.message = "\n".join(lines)  # type: ignore[misc]  # Final for checkers
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib  # needed for errors only, and importing it takes milliseconds

            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"No such command '{name}'.{hint}")
        return super().resolve_command(ctx, args)


def _is_printing(error: OSError) -> bool:
    """Return whether click raised the error when it wrote output that is not buffered."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and at.tb_frame.f_globals.get("__name__") == "click.utils"


def _end_without_output(error: OSError, code: Any) -> NoReturn:
    if error.errno != errno.EPIPE:
        reason = error.strerror or str(error)
        click.echo(f"the output could not be written: {reason}", err=True)
    sys.exit(code)
