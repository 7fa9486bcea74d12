"""The NodeConfig of `mq-server run`, from options, a TOML file and --set; errors are UsageError."""

import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import click

from metaquorum.cli.common.logs import LOG_FORMATS, LOG_LEVELS
from metaquorum.cli.common.usage import UsageError, address, address_text, without_brackets
from metaquorum.cli.server.quorum_options import KAFKAS_ROLES, quorum_settings
from metaquorum.config.addresses import is_anywhere
from metaquorum.config.definition import Scope
from metaquorum.config.registry import find_key, parse_all
from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.network.listeners import (
    DEFAULT_NAME,
    ClientListener,
    ListenerError,
    ReplicationListener,
    client_listeners,
    replicating,
)
from metaquorum.dataplane.node_config import NodeConfig
from metaquorum.wire.primitives.errors import KafkaError
from metaquorum.wire.primitives.frozen import frozen

DEFAULT_DATA_DIR: Final = "mq-data"
DEFAULT_LISTEN: Final = "127.0.0.1:9092"
# Keys of the TOML file and their types
_FILE_KEYS: Final[Mapping[str, type]] = {
    "data-dir": str,
    "listen": str,
    "advertise": str,
    "node-id": int,
    "roles": str,
    "quorum": str,
    "quorum-listen": str,
    "cluster-id": str,
    "secret-file": str,
    "quorum-tls-certificate": str,
    "quorum-tls-key": str,
    "quorum-tls-authorities": str,
    "host": str,
    "rack": str,
    "metrics-listen": str,
    "ignore-dynamic-connection-limits": bool,
    "log-format": str,
    "log-level": str,
}
_CONFIG_TABLE: Final = "config"


@frozen
class Invocation:
    node: NodeConfig
    log_format: str
    log_level: str


def invocation(
    options: Mapping[str, Any], config_file: str | None, sets: Sequence[str]
) -> Invocation:
    """Return the node's settings: command line options, then the file, then defaults.

    Raises UsageError if one is invalid.
    """
    chosen, configs = _read_file(config_file) if config_file else ({}, {})
    chosen |= {
        name.replace("_", "-"): value for name, value in options.items() if value is not None
    }
    configs |= _sets(sets)
    try:
        parse_all(Scope.WORKER, configs)
    except KafkaError as error:
        raise UsageError(error.message) from None
    _refuse_dynamic_only(configs)
    _warn_of_secrets(sets, config_file)
    listeners, between_workers = _listeners(chosen, configs)
    listen = address(chosen.get("listen", DEFAULT_LISTEN), "--listen")
    node_id = _node_id(chosen, configs)
    data_dir, log_dirs = _directories(chosen.get("data-dir"), configs)
    metrics_listen = None
    if metrics_at := chosen.get("metrics-listen") or configs.get("metrics.listen"):
        metrics_listen = address(metrics_at, "--metrics-listen")
    node = NodeConfig(
        node_id=node_id,
        data_dir=data_dir,
        log_dirs=log_dirs,
        listen=listen,
        advertise=_advertise(chosen.get("advertise"), listen),
        listeners=listeners,
        replicating=between_workers,
        host=chosen.get("host") or socket.gethostname(),
        rack=chosen.get("rack") or configs.get("broker.rack"),
        **quorum_settings(chosen, configs, node_id),
        metrics_listen=metrics_listen,
        ignores_connection_limits=bool(chosen.get("ignore-dynamic-connection-limits")),
    )
    return Invocation(
        replace(node, configs=configs | _shown(node)),
        _one_of(chosen.get("log-format", "text"), LOG_FORMATS, "log-format"),
        _one_of(chosen.get("log-level", "info"), LOG_LEVELS, "log-level"),
    )


def _refuse_dynamic_only(configs: Mapping[str, str]) -> None:
    for name, value in configs.items():
        key = find_key(Scope.WORKER, name)
        if key is not None and key.dynamic_only:
            raise UsageError(
                f"{name} can be set dynamically only; start the node without it, then run:"
                f" mq-admin configs set broker default {name}={value}"
            )


def _shown(node: NodeConfig) -> dict[str, str]:
    """Return the configs that options or defaults determine, for DescribeConfigs."""
    shown = {
        "node.id": str(node.node_id),
        "broker.id": str(node.node_id),
        "process.roles": ",".join(sorted(KAFKAS_ROLES[role] for role in node.roles)),
    }
    if not node.log_dirs:
        shown["log.dirs"] = node.data_dir
    if node.rack is not None:
        shown["broker.rack"] = node.rack
    if node.metrics_listen is not None:
        shown["metrics.listen"] = address_text(*node.metrics_listen)
    if node.controllers:
        shown["controller.quorum.voters"] = ",".join(
            f"{voter}@{address_text(*at)}" for voter, at in sorted(node.controllers.items())
        )
    if node.is_worker and not node.listeners:
        shown["listeners"] = f"{DEFAULT_NAME}://{address_text(*node.listen)}"
        host, port = node.advertise
        if port := port or node.listen[1]:  # port 0: not known before it is bound
            shown["advertised.listeners"] = f"{DEFAULT_NAME}://{address_text(host, port)}"
    return shown


def _read_file(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    import tomllib  # most nodes have no file

    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = ""
        if path.endswith(".properties"):
            hint = (
                "; Kafka's properties belong into a table of a TOML file, with quotes:"
                ' [config] and lines such as "log.retention.hours" = 24'
            )
        raise UsageError(f"{path} is not TOML: {error}{hint}") from None
    configs = content.pop(_CONFIG_TABLE, {})
    if not isinstance(configs, dict):
        raise UsageError(f"{path}: [{_CONFIG_TABLE}] must be a table")
    for name, value in content.items():
        kind = _FILE_KEYS.get(name)
        if kind is None:
            raise UsageError(
                f"{path}: {name} is unknown; the keys are {', '.join(_FILE_KEYS)} "
                f"and the table [{_CONFIG_TABLE}]"
            )
        if type(value) is not kind:
            raise UsageError(f"{path}: {name} must be {_ARTICLES[kind]}")
        if value == "":
            raise UsageError(f"{path}: {name} is empty; set a value, or remove the line")
    return content, {name: _config_text(path, name, value) for name, value in _flat(configs)}


_ARTICLES: Final = {str: "a string", int: "a whole number", bool: "true or false"}


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten nested tables: TOML parses unquoted names with dots, as Kafka's, as tables."""
    rows: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows


def _config_text(path: str, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{path}: {name} must be a string, a number, a boolean or a list")


def _sets(sets: Sequence[str]) -> dict[str, str]:
    configs: dict[str, str] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes KEY=VALUE, not {text!r}")
        configs[name.strip()] = value
    return configs


def _warn_of_secrets(sets: Sequence[str], config_file: str | None) -> None:
    for name in _secrets(_sets(sets)):
        click.echo(
            f"mq-server: all users of this machine can read {name} on the command line;"
            " set it in a file (--config)",
            err=True,
        )
    if config_file and os.stat(config_file).st_mode & (stat.S_IROTH | stat.S_IWOTH):
        for name in _secrets(_read_file(config_file)[1]):
            click.echo(
                f"mq-server: all users of this machine can access {config_file}, which sets {name}:"
                f" chmod 600 {config_file}",
                err=True,
            )


def _secrets(configs: Iterable[str]) -> Iterator[str]:
    for name in configs:
        if (key := find_key(Scope.WORKER, name)) is not None and key.is_secret:
            yield name


def _listeners(
    chosen: Mapping[str, Any], configs: Mapping[str, str]
) -> tuple[tuple[ClientListener, ...], ReplicationListener | None]:
    """Return the listeners of the config `listeners`; none if it is not set (--listen)."""
    static = WorkerLayers(configs).worker_configs()
    try:
        listeners = client_listeners(static)
        if not listeners:
            return (), None
        for option in ("listen", "advertise"):
            if chosen.get(option):
                raise UsageError(f"--{option} and the config listeners exclude each other")
        return listeners, replicating(static, listeners)
    except ListenerError as error:
        raise UsageError(str(error)) from None


def _one_of(value: str, values: Sequence[str], name: str) -> str:
    if value not in values:
        raise UsageError(f"{name} must be one of {', '.join(values)}, not {value}")
    return value


def _advertise(text: str | None, listen: tuple[str, int]) -> tuple[str, int | None]:
    if text is None:
        return socket.gethostname() if is_anywhere(listen[0]) else listen[0], None
    port: int | None
    is_whole_ipv6 = text.count(":") > 1 and not text.startswith("[")
    if ":" not in text or is_whole_ipv6 or text.endswith("]"):
        host, port = without_brackets(text, "--advertise"), None
    else:
        host, port = address(text, "--advertise")
    if is_anywhere(host):
        raise UsageError(
            f"--advertise: clients cannot connect to {text or 'nothing'}; specify a host name or an"
            " address of this machine that clients can reach"
        )
    return host, port


def _node_id(chosen: Mapping[str, Any], configs: dict[str, str]) -> int:
    """Return the node id from the option or Kafka's configs, which must agree."""
    names = [name for name in ("node.id", "broker.id") if name in configs]
    said: dict[str, int] = {name: int(configs.pop(name)) for name in names}
    if (option := chosen.get("node-id")) is not None:
        said = {"--node-id": option} | said
    if len(set(said.values())) > 1:
        raise UsageError(" but ".join(f"{name} is {value}" for name, value in said.items()))
    node_id = next(iter(said.values()), 1)
    if not 0 <= node_id <= 2**31 - 1:
        raise UsageError(f"--node-id must be from 0 to 2147483647, not {node_id}")
    assert isinstance(node_id, int)
    return node_id


def _directories(data_dir: str | None, configs: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the data directory and the log directories (may be none) as absolute paths.

    As in Kafka, the metadata log is in the first log directory by default.
    """
    named = configs.get("log.dirs", configs.get("log.dir"))
    log_dirs = tuple(
        os.path.abspath(path.strip()) for path in (named or "").split(",") if path.strip()
    )
    if named is not None and not log_dirs:
        raise UsageError("log.dirs is empty; set at least one directory, or omit it")
    by_config = configs.get("metadata.log.dir")
    if by_config is not None and not by_config.strip():
        raise UsageError("metadata.log.dir is empty; set a directory, or omit it")
    if data_dir and by_config and os.path.abspath(data_dir) != os.path.abspath(by_config):
        raise UsageError(
            f"--data-dir is {data_dir}, but the config metadata.log.dir is {by_config}"
        )
    data_dir = data_dir or by_config or (log_dirs[0] if log_dirs else DEFAULT_DATA_DIR)
    return os.path.abspath(data_dir), log_dirs
