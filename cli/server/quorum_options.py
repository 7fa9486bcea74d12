"""Options of a node about its cluster: roles, quorum, cluster id, secret, TLS between nodes."""

from collections.abc import Mapping
from typing import Any, Final

from metaquorum.cli.common.usage import UsageError, address
from metaquorum.dataplane.node_config import ALL_ROLES, CONTROLLER, WORKER, Address
from metaquorum.quorum.channel.identity import SecretError, read_secret
from metaquorum.runtime.whole_numbers import whole_number
from metaquorum.security.tls_context import TlsFiles

QUORUM_SIZES: Final = (1, 3, 5)
KAFKAS_ROLES: Final = {WORKER: "broker", CONTROLLER: "controller"}


def quorum_settings(
    chosen: Mapping[str, Any], configs: Mapping[str, str], node_id: int
) -> dict[str, Any]:
    """Return the fields of NodeConfig about the cluster. Raises UsageError if one is invalid."""
    roles = _roles(_either("roles", "process.roles", chosen, configs))
    controllers = _controllers(
        _either("quorum", "controller.quorum.voters", chosen, configs), node_id, roles
    )
    return {
        "roles": roles,
        "controllers": controllers,
        "quorum_listen": _quorum_listen(chosen.get("quorum-listen"), controllers, roles),
        "cluster_id": cluster_id_option(chosen.get("cluster-id")),
        "secret": _secret(chosen.get("secret-file"), controllers),
        "tls": _tls(chosen, controllers),
    }


def _either(
    option: str, config: str, chosen: Mapping[str, Any], configs: Mapping[str, str]
) -> str | None:
    """Return the value of the option or of Kafka's config; raises UsageError if both are set."""
    by_option, by_config = chosen.get(option), configs.get(config)
    if by_option is not None and by_config is not None:
        raise UsageError(f"--{option} and the config {config} are both set: omit one")
    return by_config if by_option is None else str(by_option)


def _roles(text: str | None) -> frozenset[str]:
    if text is None or text == "both":
        return ALL_ROLES
    names = [role.strip() for role in text.split(",")]
    ours = {kafkas: role for role, kafkas in KAFKAS_ROLES.items()}
    roles = frozenset(ours.get(role, role) for role in names)
    if not roles or not roles <= ALL_ROLES:
        raise UsageError(f"--roles takes controller, worker or both, not {text!r}")
    return roles


def _controllers(text: str | None, node_id: int, roles: frozenset[str]) -> dict[int, Address]:
    """Return the quorum address of each controller; none for a single node."""
    if text is None:
        if roles != ALL_ROLES:
            (role,) = roles
            raise UsageError(
                f"a node that is only a {role} needs other nodes: specify the controllers with"
                " --quorum ID@HOST:PORT,..."
            )
        return {}
    controllers: dict[int, Address] = {}
    for item in text.split(","):
        voter, at, where = item.strip().partition("@")
        voter_id = whole_number(voter, 2**31 - 1)
        if not at or voter_id is None:
            raise UsageError(f"--quorum takes ID@HOST:PORT,..., not {text!r}")
        if voter_id in controllers:
            raise UsageError(f"--quorum names controller {voter} twice")
        controllers[voter_id] = address(where, "--quorum")
        if not controllers[voter_id][1]:
            raise UsageError("--quorum takes ports that other nodes can connect to, not 0")
    if len(controllers) not in QUORUM_SIZES:
        raise UsageError(f"--quorum takes 1, 3 or 5 controllers, not {len(controllers)}")
    if CONTROLLER in roles and node_id not in controllers:
        raise UsageError(
            f"node {node_id} has the role controller but --quorum does not contain it; for a node"
            " that is only a worker set --roles worker"
        )
    if CONTROLLER not in roles and node_id in controllers:
        raise UsageError(
            f"--quorum contains node {node_id}, but its --roles do not include controller"
        )
    return controllers


def _quorum_listen(
    text: str | None, controllers: Mapping[int, Address], roles: frozenset[str]
) -> Address | None:
    if text is None:
        return None
    if not controllers or CONTROLLER not in roles:
        raise UsageError("--quorum-listen is only for controllers in --quorum")
    return address(text, "--quorum-listen")


def _secret(path: str | None, controllers: Mapping[int, Address]) -> bytes | None:
    if not controllers:
        return None
    if path is None:
        raise UsageError(
            "--quorum needs --secret-file: the cluster's secret, equal on all nodes, authenticates"
            " nodes to each other; `mq-server secret FILE` creates one"
        )
    try:
        return read_secret(path)
    except SecretError as error:
        raise UsageError(f"--secret-file: {error}") from None


def _tls(chosen: Mapping[str, Any], controllers: Mapping[int, Address]) -> TlsFiles | None:
    certificate = chosen.get("quorum-tls-certificate")
    key = chosen.get("quorum-tls-key")
    authorities = chosen.get("quorum-tls-authorities")
    given = [each for each in (certificate, key, authorities) if each is not None]
    if not given:
        return None
    if len(given) < 3 or not controllers:
        raise UsageError(
            "TLS between nodes needs --quorum, --quorum-tls-certificate, --quorum-tls-key and"
            " --quorum-tls-authorities together"
        )
    return TlsFiles(str(certificate), str(key), str(authorities))


def cluster_id_option(text: str | None) -> str | None:
    """Return a cluster id in Kafka's form: 22 characters of URL-safe base64."""
    if text is None:
        return None
    if len(text) != 22 or not all(c.isascii() and (c.isalnum() or c in "-_") for c in text):
        raise UsageError(
            f"--cluster-id takes 22 letters, digits, - or _, as `mq-server cluster-id` prints,"
            f" not {text!r}"
        )
    return text
