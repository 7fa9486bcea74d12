"""Worker configs of listeners: addresses, connection limits, TLS and authentication."""

from typing import Final

from metaquorum.config.definition import (
    INT,
    INT_MAX,
    LIST,
    LONG,
    PASSWORD,
    STRING,
    ConfigKey,
    CountsByAddress,
    OneOf,
    Range,
    listener_config,
    worker_config,
)

SOCKET_SERVER_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    worker_config(
        "connections.max.idle.ms",
        LONG,
        600_000,
        Range(-1),
        "Time without a request after which the worker closes a connection; -1 for never.",
    ),
    listener_config(
        "max.connection.creation.rate",
        INT,
        INT_MAX,
        Range(1),
        "Maximum rate of new connections per second; further connections wait. The worker's limit"
        " does not count a separate inter-broker listener; a listener's limit counts all"
        " connections of that listener.",
        dynamic=True,
    ),
    listener_config(
        "max.connections",
        INT,
        INT_MAX,
        Range(0),
        "Maximum number of open connections of the worker, or of one listener. Connections of other"
        " workers are always accepted: the least recently used client connection is closed for"
        " them.",
        dynamic=True,
    ),
    worker_config(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        Range(0),
        "Maximum number of open client connections from one IP address.",
        dynamic=True,
    ),
    worker_config(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        CountsByAddress(),
        "Limits of single IP addresses that replace max.connections.per.ip, as"
        " ADDRESS:COUNT,ADDRESS:COUNT.",
        dynamic=True,
    ),
    worker_config(
        "queued.max.request.bytes",
        LONG,
        -1,
        None,
        "Maximum bytes of requests in memory over all connections; above it, the worker stops"
        " reading requests until others are answered. -1 means 512 MiB.",
    ),
    worker_config(
        "listeners",
        LIST,
        None,
        None,
        "Addresses that the worker listens on, each as NAME://HOST:PORT. If not set: one listener"
        " PLAINTEXT with the address of --listen.",
    ),
    worker_config(
        "advertised.listeners",
        LIST,
        None,
        None,
        "Addresses that the worker publishes to clients if they differ from listeners, each as"
        " NAME://HOST:PORT (--advertise).",
    ),
    worker_config(
        "listener.security.protocol.map",
        LIST,
        (
            "PLAINTEXT:PLAINTEXT",
            "SSL:SSL",
            "SASL_PLAINTEXT:SASL_PLAINTEXT",
            "SASL_SSL:SASL_SSL",
        ),
        None,
        "Security protocol of each listener, as NAME:PROTOCOL.",
    ),
    worker_config(
        "inter.broker.listener.name",
        STRING,
        None,
        None,
        "Name of the listener for connections between workers. If not set: PLAINTEXT, or the only"
        " listener.",
    ),
    listener_config(
        "ssl.keystore.type",
        STRING,
        "PEM",
        OneOf(("PEM",), refused=("JKS", "PKCS12")),
        "File format of ssl.keystore.location.",
    ),
    listener_config(
        "ssl.keystore.location",
        STRING,
        None,
        None,
        "PEM file with this node's private key (not encrypted), its certificate and the"
        " intermediate certificates. The node reloads the file when it is replaced.",
    ),
    listener_config(
        "ssl.truststore.type",
        STRING,
        "PEM",
        OneOf(("PEM",), refused=("JKS", "PKCS12")),
        "File format of ssl.truststore.location.",
    ),
    listener_config(
        "ssl.truststore.location",
        STRING,
        None,
        None,
        "PEM file with the certificate authorities that the node trusts, for clients and other"
        " workers. The node reloads the file when it is replaced.",
    ),
    listener_config(
        "ssl.client.auth",
        STRING,
        "none",
        OneOf(("none", "requested", "required")),
        "Whether the worker requests TLS certificates from clients. A SASL_SSL listener does so"
        " only if this config is set with the listener's prefix (KIP-684).",
    ),
    listener_config(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        None,
        "Rules that map the distinguished name of a client certificate to a principal:"
        " RULE:PATTERN/REPLACEMENT/[LU] or DEFAULT, separated by commas. The first rule that"
        " matches applies (KIP-371).",
    ),
    listener_config(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        OneOf(("https", "")),
        "How a node verifies the host name in the certificate of another worker: https, or an"
        " empty value for no verification.",
    ),
    listener_config(
        "sasl.enabled.mechanisms",
        LIST,
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        OneOf(
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            refused=("GSSAPI", "OAUTHBEARER"),
        ),
        "SASL mechanisms that clients may authenticate with.",
    ),
    worker_config(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        "SCRAM-SHA-512",
        OneOf(
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            refused=("GSSAPI", "OAUTHBEARER"),
        ),
        "SASL mechanism that a worker authenticates with at other workers.",
    ),
    listener_config(
        "sasl.jaas.config",
        PASSWORD,
        None,
        None,
        "Users and passwords for PLAIN (user_NAME), and the credentials of this worker (username,"
        ' password), as: MODULE required NAME="VALUE" NAME="VALUE" ... with a semicolon at the'
        " end.",
        per_mechanism=True,
    ),
    listener_config(
        "sasl.server.max.receive.size",
        INT,
        524_288,
        Range(1024),
        "Largest request that the worker accepts before the client has authenticated.",
    ),
    listener_config(
        "connections.max.reauth.ms",
        LONG,
        0,
        Range(0),
        "Time after which a client must authenticate again; otherwise the worker closes its"
        " connection (KIP-368). 0 for no re-authentication.",
        per_mechanism=True,
    ),
    listener_config(
        "connection.failed.authentication.delay.ms",
        INT,
        100,
        Range(0, 60_000),
        "Time by which the worker delays the response to a failed authentication.",
    ),
    worker_config(
        "socket.request.max.bytes",
        INT,
        104_857_600,
        Range(1),
        "Largest request that the worker accepts.",
    ),
)
