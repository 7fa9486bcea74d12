"""Names of the topics in which workers keep state of their own: internal topics.

A worker creates them when they are first needed, and alone writes to them. Clients can read them.

    creation, by CreateTopics or Metadata       INVALID_TOPIC_EXCEPTION
    Produce, DeleteRecords                      INVALID_TOPIC_EXCEPTION, as in Kafka
    CreatePartitions, DeleteTopics              INVALID_REQUEST (Kafka permits both)
    ElectLeaders, unclean                       INVALID_REQUEST (Kafka permits it)
    configs that could remove or stop state,
    unclean.leader.election.enable=true         INVALID_REQUEST (Kafka permits both); see
                                                `metaquorum.config.state_topics`

The number of partitions is part of the format of an internal topic: which partition has the state
of a group follows from it.
"""

from collections.abc import Mapping
from typing import Final

from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
# Name to content. The set is Kafka's.
INTERNAL_TOPICS: Final[Mapping[str, str]] = {
    CONSUMER_OFFSETS: "consumer groups",
    TRANSACTION_STATE: "transactions",
}


def is_internal(name: str | None) -> bool:
    """Return whether a topic of this name is internal, also if it does not exist."""
    return name in INTERNAL_TOPICS


def check_not_internal(name: str, action: str) -> None:
    """Raise KafkaError (INVALID_REQUEST) if `name` is an internal topic.

    `action`: what a client asked for, such as "deleted".
    """
    if name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Topic '{name}' has the state of {INTERNAL_TOPICS[name]} and cannot be {action}.",
        )


def check_writable(name: str) -> None:
    """Raise KafkaError (INVALID_TOPIC_EXCEPTION) if only workers write to the topic."""
    if name in INTERNAL_TOPICS:
        raise read_only(name)


def read_only(name: str) -> KafkaError:
    """Return the error for a client that changes the records of the internal topic `name`."""
    return KafkaError(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"topic '{name}' has the state of {INTERNAL_TOPICS[name]}; clients can only read it",
    )


def no_unclean_election(name: str) -> KafkaError:
    """Return the error for an unclean election, or permission for it, in an internal topic."""
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Topic '{name}' has the state of {INTERNAL_TOPICS[name]}, which an unclean leader election"
        " could lose; start a worker with an in-sync or eligible replica instead.",
    )


def not_creatable(name: str) -> KafkaError:
    """Return the error for a client that creates the internal topic `name`."""
    return KafkaError(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Topic '{name}' is internal: a worker creates it on the first use of"
        f" {INTERNAL_TOPICS[name]}.",
    )
