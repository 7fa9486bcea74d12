"""mq-admin, run in the process of the test."""

import json
import os
import re
from typing import Any

from click.testing import CliRunner

from metaquorum.cli.admin.main import main
from tests.nodes import unique, wait_until

OF_A_TERMINAL = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"}


def environment(**more: str) -> dict[str, str]:
    """Return an environment without this project's variables and without profiles."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MQ_", "XDG_", "PYTHONDONT")) and name not in OF_A_TERMINAL
    }
    return kept | {"XDG_CONFIG_HOME": "/nonexistent"} | more


class Admin:
    """mq-admin in this process, which saves half a second per run."""

    def __init__(self, **more: str) -> None:
        self.environment = environment(**more)
        self.errors = ""

    def __call__(self, *arguments: object, code: int = 0, stdin: str | bytes = "") -> str:
        blank = {name: None for name in os.environ if name not in self.environment}
        done = CliRunner().invoke(
            main,
            [str(argument) for argument in arguments],
            input=stdin,
            env=blank | self.environment,
            prog_name="mq-admin",
        )
        self.errors = done.stderr
        assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
        return done.stdout

    def json(self, *arguments: object, **more: Any) -> Any:
        return json.loads(self(*arguments, "-o", "json", **more))

    def create(self, *more: object) -> str:
        """Create a topic and wait until all nodes show it."""
        name = unique("cli")
        self("topics", "create", name, *more)
        self.wait_for(name)
        return name

    def wait_for(self, topic: str) -> None:
        """Wait until the topic has a leader that accepts requests; Kafka's metadata show it
        earlier.
        """
        wait_until(lambda: topic in [row["topic"] for row in self.json("topics", "list")])

        def is_led() -> bool:
            try:
                (described,) = self.json("topics", "describe", topic)
            except AssertionError:  # the node asked is not the leader yet
                return False
            return all(row["end_offset"] is not None for row in described["partitions"])

        wait_until(is_led)

    def wait_until_quotas(self, whom: tuple[str, ...], count: int) -> None:
        """Wait until Kafka's brokers have applied the change, which it acknowledges earlier."""
        wait_until(
            lambda: len(self.json("quotas", "describe", *whom).get("quotas", ())) == count,
            what=f"{count} quotas",
        )

    def wait_until_mechanisms(self, user: str, count: int) -> None:
        wait_until(
            lambda: sum(row["user"] == user for row in self.json("users", "list")) == count,
            what=f"{count} mechanisms",
        )

    def serves(self, api: str) -> bool:
        return api in [row["api"] for row in self.json("cluster", "apis")]

    def served(self, api: str, *arguments: object) -> bool:
        """Run the command if the API is supported, otherwise check its error; return whether."""
        if self.serves(api):
            self(*arguments)
            return True
        self(*arguments, code=1)
        assert re.match(rf"mq-admin: this cluster does not serve {api} \(API \d+\)\n", self.errors)
        return False
