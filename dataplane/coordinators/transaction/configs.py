"""Configs of the transaction coordinator that are in force."""

from metaquorum.config.resolution import Configs


class TransactionConfigs:
    """Configs in force, changed in place; shared by the coordinator and the produce handler."""

    def __init__(self) -> None:
        """Create the configs with Kafka's defaults."""
        self.max_timeout_ms = 900_000
        self.id_expiration_ms = 604_800_000
        self.timeout_check_s = 10.0
        self.expiry_check_s = 3600.0
        self.load_bytes = 5 << 20
        self.memory_bytes = 256 << 20
        self.verifies_partitions = True

    def update(self, configs: Configs) -> None:
        """Take the values of the worker's configs."""
        integer = configs.integer
        self.max_timeout_ms = integer("transaction.max.timeout.ms")
        self.id_expiration_ms = integer("transactional.id.expiration.ms")
        self.timeout_check_s = (
            integer("transaction.abort.timed.out.transaction.cleanup.interval.ms") / 1000
        )
        self.expiry_check_s = (
            integer("transaction.remove.expired.transaction.cleanup.interval.ms") / 1000
        )
        self.load_bytes = integer("transaction.state.log.load.buffer.size")
        self.memory_bytes = integer("transaction.memory.max.bytes")
        self.verifies_partitions = configs.boolean("transaction.partition.verification.enable")
