"""mq-admin profiles."""

import os

import click

from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.common.output import Column, Row
from metaquorum.cli.common.settings import read_profiles

_COLUMNS = (
    Column("profile"),
    Column("bootstrap"),
    Column("output"),
    Column("timeout"),
    Column("default"),
)


@click.command("profiles", short_help="Show the profiles and their file.")
@session_command
def command(session: Session) -> None:
    """Show the profiles, and the cluster that a command would use now.

    The file is metaquorum/mq-admin.toml in $XDG_CONFIG_HOME or ~/.config:

    \b
      default = "local"
    \b
      [profiles.local]
      bootstrap = "127.0.0.1:9092"
    \b
      [profiles.production]
      bootstrap = "broker1:9092,broker2:9092"
      timeout = 10          # seconds
      output = "json"
    """
    profiles = read_profiles(os.environ)
    rows: list[Row] = [
        {
            "profile": name,
            "bootstrap": profile["bootstrap"],
            "output": profile.get("output"),
            "timeout": profile.get("timeout"),
            "default": name == profiles.default,
        }
        for name, profile in profiles.by_name.items()
    ]
    settings = session.settings
    if session.output != "text":
        now = {"bootstrap": settings.bootstrap, "source": settings.source}
        session.show_data({"file": profiles.path, "now": now, "profiles": rows})
        return
    session.say(f"file: {profiles.path}{'' if rows else ' (no profiles)'}")
    session.say(f"now:  {settings.bootstrap} ({settings.source})")
    if rows:
        click.echo()
        session.show_rows(rows, _COLUMNS)
