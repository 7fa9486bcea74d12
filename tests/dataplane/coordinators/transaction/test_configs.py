"""Configs of transactions: Kafka's names, types, defaults and validation, and which are dynamic."""

import pytest

from metaquorum.config.definition import BOOLEAN, INT, Scope
from metaquorum.config.registry import WORKER_KEYS, parse_all
from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.coordinators.transaction.configs import TransactionConfigs
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# The defaults are those of Apache Kafka 4.3.1.
DEFAULTS = {
    "transaction.max.timeout.ms": 900_000,
    "transactional.id.expiration.ms": 604_800_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "transaction.state.log.num.partitions": 50,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.segment.bytes": 104_857_600,
    "transaction.state.log.load.buffer.size": 5_242_880,
    "producer.id.expiration.ms": 86_400_000,
    "producer.id.expiration.check.interval.ms": 600_000,
}
VERIFICATION = "transaction.partition.verification.enable"


def in_force(**texts: str) -> TransactionConfigs:
    configs = TransactionConfigs()
    static = {name.replace("_", "."): text for name, text in texts.items()}
    configs.update(WorkerLayers(static, dynamic={}, dynamic_default={}).worker_configs())
    return configs


def test_the_defaults_are_kafkas() -> None:
    assert {name: WORKER_KEYS[name].default for name in DEFAULTS} == DEFAULTS
    assert {WORKER_KEYS[name].type for name in DEFAULTS} == {INT}
    assert WORKER_KEYS[VERIFICATION].type is BOOLEAN
    assert WORKER_KEYS[VERIFICATION].default is True
    assert vars(in_force()) == vars(TransactionConfigs())


def test_kafkas_two_dynamic_configs_change_while_nodes_run() -> None:
    dynamic = {name for name in (*DEFAULTS, VERIFICATION) if WORKER_KEYS[name].dynamic}
    assert dynamic == {"producer.id.expiration.ms", VERIFICATION}


@pytest.mark.parametrize("name", DEFAULTS)
def test_values_below_1_are_refused(name: str) -> None:
    for text in ("0", "-1", "x", str(2**31)):
        with pytest.raises(KafkaError) as refused:
            parse_all(Scope.WORKER, {name: text})
        assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_the_coordinator_has_the_values_of_the_worker() -> None:
    configs = in_force(
        transaction_max_timeout_ms="1000",
        transactional_id_expiration_ms="2000",
        transaction_abort_timed_out_transaction_cleanup_interval_ms="3000",
        transaction_remove_expired_transaction_cleanup_interval_ms="4000",
        transaction_state_log_load_buffer_size="5000",
        transaction_memory_max_bytes="6000000",
        transaction_partition_verification_enable="false",
    )
    assert vars(configs) == {
        "max_timeout_ms": 1000,
        "id_expiration_ms": 2000,
        "timeout_check_s": 3.0,
        "expiry_check_s": 4.0,
        "load_bytes": 5000,
        "memory_bytes": 6_000_000,
        "verifies_partitions": False,
    }
