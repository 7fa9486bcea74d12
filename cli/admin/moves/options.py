"""Options of several commands of moves."""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click
from click.core import ParameterSource

from metaquorum.cli.admin.common.session import INT64_MAX

_RATE: Final = click.IntRange(1, INT64_MAX)
_NAMES: Final = frozenset(
    {"throttle", "no_throttle", "within", "network_bytes_per_s", "measure_seconds", "batch"}
)


class ThrottleChoice(NamedTuple):
    """How the throttle of a plan is chosen: by the user, from a time, or by a proposal."""

    rate_bytes_per_s: int | None
    is_unlimited: bool
    within_s: float | None
    network_bytes_per_s: int | None
    measure_s: float


def throttle_options(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: add the options of a plan's throttle and pass a ThrottleChoice."""

    @click.option(
        "--throttle",
        type=_RATE,
        metavar="BYTES_PER_S",
        help="Limit of each worker for what it sends and for what it receives.  "
        "[default: proposed]",
    )
    @click.option("--no-throttle", is_flag=True, help="Plan without a limit.")
    @click.option(
        "--within",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="The least throttle with which the plan takes at most this time.",
    )
    @click.option(
        "--network-bytes-per-s",
        type=_RATE,
        metavar="BYTES_PER_S",
        help="Network of a worker, one direction.  [default: config network.bytes.per.second]",
    )
    @click.option(
        "--measure-seconds",
        type=click.FloatRange(0, 3600),
        default=10,
        show_default=True,
        metavar="SECONDS",
        help="Time over which inbound rates are measured; 0: count as 0.",
    )
    @functools.wraps(function)
    def call(
        throttle: int | None,
        no_throttle: bool,
        within: float | None,
        network_bytes_per_s: int | None,
        measure_seconds: float,
        **arguments: Any,
    ) -> None:
        if sum(map(bool, (throttle, no_throttle, within))) > 1:
            raise click.UsageError("--throttle, --no-throttle and --within exclude each other")
        chosen = ThrottleChoice(throttle, no_throttle, within, network_bytes_per_s, measure_seconds)
        function(chosen=chosen, **arguments)

    return call


batch_option = click.option(
    "--batch",
    type=click.IntRange(1, 500),
    default=100,
    show_default=True,
    metavar="PARTITIONS",
    help="Partitions that move at the same time.",
)


def refuse_without(option: str) -> None:
    """Raise click.UsageError if the user has given one of the options above, as `option` is not."""
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in _NAMES and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]} is only for {option}")
