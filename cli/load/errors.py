"""Error handling of all commands: a sentence on stderr and an exit code."""

import functools
import sys
from collections.abc import Callable
from typing import Final, NoReturn

import click

from metaquorum.cli.common.output import printable
from metaquorum.cli.load.extras import missing_text
from metaquorum.client.errors import AdminError, UnreachableError
from metaquorum.spark.errors import LoadError
from metaquorum.spark.given_options import OptionError
from metaquorum.spark.loader.errors import LoaderError, UsageError
from metaquorum.wire.primitives.errors import KafkaError, WireError

REFUSED: Final = 1
BAD_USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130  # 128 + SIGINT, as in shells


def says_why(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: report its errors as sentences on stderr, with an exit code for each kind."""

    @functools.wraps(function)
    def call(*arguments: object, **options: object) -> None:
        try:
            function(*arguments, **options)
        except (UsageError, OptionError) as error:
            fail(error, BAD_USAGE)
        except UnreachableError as error:
            fail(error, UNREACHABLE, "set the cluster with --bootstrap, MQ_BOOTSTRAP or a profile")
        except KafkaError as error:
            fail(f"{error} ({error.code.name})", REFUSED)
        except (LoaderError, LoadError, AdminError, WireError) as error:
            fail(error, REFUSED)
        except KeyboardInterrupt:
            fail("interrupted; the same command continues from here", INTERRUPTED)
        except ImportError as error:
            if (missing := missing_text(error)) is None:
                raise
            fail(missing, REFUSED)

    return call


def fail(what: object, code: int, hint: str = "") -> NoReturn:
    click.echo(f"mq-load: {printable(str(what))}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)
    sys.exit(code)
