"""Help of every command of `mq-server`, `mq-admin` and `mq-load`."""

import importlib
import re
from collections.abc import Iterator

import click

_WIDTH = 92  # columns of the help


def _commands(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    """Yield the full name and the help of `command` and of all commands below it."""
    settings = command.context_settings | {"max_content_width": _WIDTH}
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=_WIDTH, **settings
    )
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from _commands(found, below, context)


def _page(program: str, module: str, attribute: str, introduction: str) -> str:
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    text = f"# {program}: all commands\n\n{introduction}\n"
    for path, help_text in _commands(command, program, None):
        help_text = re.sub(r"[ \t]+$", "", help_text, flags=re.MULTILINE)
        text += f"\n## {path}\n\n```text\n{help_text}\n```\n"
    return text


def mq_admin() -> str:
    return _page(
        "mq-admin",
        "metaquorum.cli.admin.main",
        "main",
        "`mq-admin` administers any Kafka-compatible cluster: topics, configs, quotas, users,"
        " workers and records.\nTasks are in the how-to guides, for instance [Administer topics"
        "](../howto/administer-topics.md).",
    )


def mq_load() -> str:
    return _page(
        "mq-load",
        "metaquorum.cli.load.main",
        "main",
        "`mq-load` loads exact offset ranges of topics into Parquet files; see [Load topics into"
        "\nParquet](../howto/load-topics-into-parquet.md).",
    )


def mq_server() -> str:
    return _page(
        "mq-server",
        "metaquorum.cli.server.main",
        "main",
        "`mq-server` runs a node, or a cluster of nodes on this machine, and prepares and reads"
        " their\ndata directories.",
    )
