"""Configs of workers: where clients come in, how many, and who they have to show to be."""

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
        "A connection without a request for so long is closed; -1 for never.",
    ),
    listener_config(
        "max.connection.creation.rate",
        INT,
        INT_MAX,
        Range(1),
        "Connections taken in a second, but those by the listener between workers where clients"
        " have another; more wait until they are. Of a listener: all that come by it.",
        dynamic=True,
    ),
    listener_config(
        "max.connections",
        INT,
        INT_MAX,
        Range(0),
        "Open connections in all; of a listener: by it. Other workers have a place in any case, for"
        " which the least recently used connection of a client ends.",
        dynamic=True,
    ),
    worker_config(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        Range(0),
        "Open client connections of one address.",
        dynamic=True,
    ),
    worker_config(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        CountsByAddress(),
        "What holds for some addresses instead, as ADDRESS:COUNT,ADDRESS:COUNT.",
        dynamic=True,
    ),
    worker_config(
        "queued.max.request.bytes",
        LONG,
        -1,
        None,
        "Bytes of requests held in memory at once, over all connections; -1 for no limit.",
    ),
    worker_config(
        "listeners",
        LIST,
        None,
        None,
        "Where clients come in, each as NAME://HOST:PORT; none: one listener PLAINTEXT (--listen).",
    ),
    worker_config(
        "advertised.listeners",
        LIST,
        None,
        None,
        "What clients are told instead, each as NAME://HOST:PORT (--advertise).",
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
        "How each listener is secured, as NAME:PROTOCOL.",
    ),
    worker_config(
        "inter.broker.listener.name",
        STRING,
        None,
        None,
        "The listener by which the workers fetch from each other; PLAINTEXT, or the only one.",
    ),
    listener_config(
        "ssl.keystore.type",
        STRING,
        "PEM",
        OneOf(("PEM",), refused=("JKS", "PKCS12")),
        "The form of ssl.keystore.location.",
    ),
    listener_config(
        "ssl.keystore.location",
        STRING,
        None,
        None,
        "A PEM file with this node's key, not encrypted, and its certificate and those between it"
        " and an authority; read again when it is replaced.",
    ),
    listener_config(
        "ssl.truststore.type",
        STRING,
        "PEM",
        OneOf(("PEM",), refused=("JKS", "PKCS12")),
        "The form of ssl.truststore.location.",
    ),
    listener_config(
        "ssl.truststore.location",
        STRING,
        None,
        None,
        "A PEM file with the authorities whose certificates are believed: clients', and other"
        " workers'; read again when it is replaced.",
    ),
    listener_config(
        "ssl.client.auth",
        STRING,
        "none",
        OneOf(("none", "requested", "required")),
        "Whether clients show certificates. Of listeners with SASL only those that have this"
        " config of their own ask for any (KIP-684).",
    ),
    listener_config(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        None,
        "What the owner of a certificate is called: RULE:PATTERN/REPLACEMENT/[LU] or DEFAULT, of"
        " which the first that fits (KIP-371).",
    ),
    listener_config(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        OneOf(("https", "")),
        "Whether another worker's certificate has to name its host: https, or nothing for no.",
    ),
    listener_config(
        "sasl.enabled.mechanisms",
        LIST,
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        OneOf(
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            refused=("GSSAPI", "OAUTHBEARER"),
        ),
        "By which mechanisms clients may show who they are.",
    ),
    worker_config(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        "SCRAM-SHA-512",
        OneOf(
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            refused=("GSSAPI", "OAUTHBEARER"),
        ),
        "By which mechanism a worker shows the others who it is.",
    ),
    listener_config(
        "sasl.jaas.config",
        PASSWORD,
        None,
        None,
        "Users and passwords for PLAIN (user_NAME), and this worker's own (username, password):"
        ' MODULE required NAME="VALUE" NAME="VALUE" and so on, ended by a semicolon.',
        per_mechanism=True,
    ),
    listener_config(
        "sasl.server.max.receive.size",
        INT,
        524_288,
        Range(1024),
        "The largest request of a client that has not shown who it is.",
    ),
    listener_config(
        "connections.max.reauth.ms",
        LONG,
        0,
        Range(0),
        "Clients have to show so often who they are, or are cut off (KIP-368); 0: once.",
        per_mechanism=True,
    ),
    listener_config(
        "connection.failed.authentication.delay.ms",
        INT,
        100,
        Range(0, 60_000),
        "How long one who could not show who it is waits for the answer.",
    ),
    worker_config(
        "socket.request.max.bytes", INT, 104_857_600, Range(1), "The largest request taken."
    ),
)
