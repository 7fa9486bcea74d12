"""mq-admin completion."""

import click
from click.shell_completion import get_completion_class

_PROGRAM = "mq-admin"
_VARIABLE = "_MQ_ADMIN_COMPLETE"


@click.command("completion", short_help="Print a completion script for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and topic names.

    \b
    Examples:
      eval "$(mq-admin completion bash)"                                 # in ~/.bashrc
      eval "$(mq-admin completion zsh)"                                  # in ~/.zshrc
      mq-admin completion fish > ~/.config/fish/completions/mq-admin.fish
    """
    root = ctx.find_root().command
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(root, {}, _PROGRAM, _VARIABLE).source())
