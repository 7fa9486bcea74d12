"""Commands of `mq-admin` whose JSON is compared between versions, on the same data directory.

Uses only options of version 958e3c3; later commands are not included.
"""

from typing import Final, NamedTuple

TOPICS: Final = ("orders", "stamped", "table", "trimmed")
PASSWORDS: Final = {"alice": "correct horse, battery", "bob": "another pass word"}
QUOTAS: Final = '[{"entity": {"user": "alice"}, "quotas": {"consumer_byte_rate": 1048576}}]'


class Command(NamedTuple):
    """A command. `words` follow `mq-admin` on the command line and name the captured output."""

    words: tuple[str, ...]
    stdin: str = ""

    @property
    def name(self) -> str:
        return " ".join(self.words)


def _command(text: str, stdin: str = "") -> Command:
    return Command(tuple(text.split()), stdin)


# Creates the content of the directory, except the records.
SETUP: Final = (
    _command("topics create orders -p 3 -c retention.ms=-1 -c max.message.bytes=200000"),
    _command("topics create stamped -p 1 -c message.timestamp.type=LogAppendTime"),
    _command("topics create table -p 2 -c cleanup.policy=compact -c retention.ms=-1"),
    _command("topics create trimmed -p 1 -c retention.ms=-1"),
    _command("configs set broker 1 log.retention.ms=86400000000"),
    _command("quotas set --user alice producer_byte_rate=2097152 request_percentage=50.5"),
    _command("quotas set --user alice --client-id etl consumer_byte_rate=1048576"),
    _command("quotas set --default-user consumer_byte_rate=4194304"),
    _command("quotas set --ip 10.0.0.1 connection_creation_rate=12"),
    _command("users create alice --mechanism scram-sha-256 --mechanism scram-sha-512", "alice"),
    _command("users create bob --iterations 4096", "bob"),
)

READING: Final = (
    _command("topics list"),
    _command("topics describe orders table"),
    _command("topics explain orders"),
    _command("configs describe topic orders"),
    _command("configs describe broker 1"),
    _command("configs get topic orders retention.ms"),
    _command("quotas list"),
    _command("quotas describe --user alice"),
    _command("quotas get --user alice producer_byte_rate"),
    _command("quotas explain --user alice --client-id etl --ip 10.0.0.1"),
    _command("quotas top --count 1 --interval 0.2"),
    _command("quotas diff -f -", QUOTAS),
    _command("users list"),
    _command("users describe alice"),
    _command("cluster describe"),
    _command("cluster health"),
    _command("cluster apis"),
    _command("quorum"),
    _command("workers list"),
    _command("workers describe 1"),
    _command("ledger"),
    _command("log-dirs"),
    _command("log-dirs --partitions"),
    _command("consume orders -p 0 -n 3"),
    _command("profiles"),
)

# The order matters: later commands are about objects of earlier ones.
CHANGING: Final = (
    _command("topics create later -p 1 -r 1"),
    _command("topics alter later -p 2 -c retention.ms=1000000"),
    _command("produce later", "a record\n"),
    _command("records delete later --before end -y"),
    _command("configs set topic later retention.bytes=1000000"),
    _command("configs unset topic later retention.bytes"),
    _command("quotas set --user carol producer_byte_rate=1000"),
    _command("quotas apply -f - --keep-others --dry-run", QUOTAS),
    _command("quotas delete --user carol -y"),
    _command("users create carol", "a password"),
    _command("users alter carol", "another one"),
    _command("users delete carol -y"),
    _command("topics delete later -y"),
)
