"""Random metadata logs, created by the rules of the controller."""

from collections.abc import Callable, Iterator
from random import Random

from hypothesis import strategies as st

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.quota_lookup import CLIENT_ID, USER, EntityPart
from metaquorum.metadata.records import ConfigRecord, Endpoint, MetadataRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES, found_cluster
from metaquorum.quorum.controller.quota_changes import QuotaChange, QuotaOp, change_quotas
from metaquorum.quorum.controller.scram_changes import (
    ScramUpsertion,
    UserScramChange,
    change_scram_credentials,
)
from metaquorum.quorum.controller.topics import (
    NewTopic,
    TopicDefaults,
    allocate_producer_ids,
    create_topic,
    delete_topic,
)
from metaquorum.quorum.controller.worker_registration import (
    WorkerRegistration,
    drain_worker,
    fence_workers,
    register_worker,
    return_worker,
    shut_down_worker,
    unfence_worker,
    unregister_worker,
)
from metaquorum.wire.primitives.errors import KafkaError

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
NAMES = st.sampled_from(["a", "b", "c.d", "c_d", "e-f", "a_b_c"])
Spec = tuple[str, object, object]

SPECS: st.SearchStrategy[list[Spec]] = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, st.integers(1, 4)),
        st.tuples(st.just("delete"), NAMES, st.none()),
        st.tuples(st.sampled_from(["register", "restart"]), st.integers(1, 3), st.integers(0, 3)),
        st.tuples(st.just("ids"), st.integers(1, 3), st.none()),
        st.tuples(st.just("config"), NAMES, st.sampled_from([None, "1", "2"])),
        st.tuples(st.just("scram"), NAMES, st.sampled_from([None, 4096, 8192])),
        st.tuples(st.just("quota"), NAMES, st.sampled_from([None, 1.0, 2.0])),
        st.tuples(
            st.sampled_from(["unregister", "unfence", "fence", "shut down", "drain", "return"]),
            st.integers(1, 3),
            st.none(),
        ),
    ),
    max_size=25,
)


def registration(worker_id: int, incarnation: int = 0) -> WorkerRegistration:
    endpoint = Endpoint("PLAINTEXT", f"host-{worker_id}", 9092, "PLAINTEXT")
    return WorkerRegistration(
        worker_id,
        bytes([incarnation] * 16),
        (endpoint,),
        "host",
        features=SUPPORTED_FEATURES,
    )


def decide(image: MetadataImage, spec: Spec, random: Random) -> Decision[object]:
    name, subject, value = spec
    decisions: dict[str, Callable[[], Decision[object]]] = {
        "create": lambda: create_topic(  # type: ignore[dict-item, return-value]
            image,
            NewTopic(str(subject), int(str(value)), configs={"retention.ms": "5"}),
            TopicDefaults(),
            random,
        ),
        "delete": lambda: delete_topic(image, str(subject), None),  # type: ignore[dict-item, return-value]
        "restart": lambda: register_worker(  # type: ignore[dict-item, return-value]
            image, registration(int(str(subject)), int(str(value)))
        ),
        "ids": lambda: allocate_producer_ids(  # type: ignore[dict-item, return-value]
            image, int(str(subject)), image.workers[int(str(subject))].broker_epoch
        ),
        "config": lambda: Decision(
            None,
            [
                ConfigRecord(
                    4, str(subject), "num.partitions", None if value is None else str(value)
                )
            ],
        ),
        "scram": lambda: change_scram_credentials(  # type: ignore[dict-item, return-value]
            image,
            UserScramChange(str(subject), deletions=(1,))
            if value is None
            else UserScramChange(
                str(subject),
                upsertions=(ScramUpsertion(1, int(str(value)), b"salt", bytes(32)),),
            ),
        ),
        "quota": lambda: change_quotas(  # type: ignore[dict-item, return-value]
            image,
            QuotaChange(
                (EntityPart(USER, str(subject)), EntityPart(CLIENT_ID, None)),
                [QuotaOp("producer_byte_rate", value)],  # type: ignore[arg-type]
            ),
        ),
        "unregister": lambda: unregister_worker(image, int(str(subject))),  # type: ignore[dict-item, return-value]
        "fence": lambda: fence_workers(image, {int(str(subject))}),  # type: ignore[dict-item, return-value]
        "drain": lambda: drain_worker(image, int(str(subject))),  # type: ignore[dict-item, return-value]
        "return": lambda: return_worker(image, int(str(subject))),  # type: ignore[dict-item, return-value]
        "unfence": lambda: unfence_worker(  # type: ignore[dict-item, return-value]
            image, int(str(subject)), image.workers[int(str(subject))].broker_epoch
        ),
        "shut down": lambda: shut_down_worker(  # type: ignore[dict-item, return-value]
            image, int(str(subject)), image.workers[int(str(subject))].broker_epoch
        ),
    }
    return decisions[name]()


def history(specs: list[Spec], seed: int = 0) -> list[MetadataRecord]:
    """Return the records of the steps, each decided on the image of all steps before."""
    random = Random(seed)
    image = MetadataImage.empty(CLUSTER)
    log: list[MetadataRecord] = found_cluster(image).all_records()
    image, _ = replay(image, log)
    for spec in _steps(specs):
        try:
            records = decide(image, spec, random).all_records()
        except (KafkaError, KeyError):
            continue
        log += records
        image, _ = replay(image, records)
    return log


def _steps(specs: list[Spec]) -> Iterator[Spec]:
    """Expand a step: registering includes unfencing, and unregistering includes fencing first."""
    for what, subject, value in specs:
        if what == "register":
            yield "restart", subject, value
            yield "unfence", subject, None
        elif what == "unregister":
            yield "fence", subject, None
            yield what, subject, value
        else:
            yield what, subject, value
