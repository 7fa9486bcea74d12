"""Eligible leader replicas: the rules alone, and over random histories of a cluster."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.config.definition import Scope
from metaquorum.metadata.image import NO_LEADER, MetadataImage, PartitionImage, partition_record
from metaquorum.metadata.records import (
    ELIGIBLE_LEADERS,
    METADATA_VERSION,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NewerVersionError,
    PartitionRecord,
    RecordEncoder,
    TopicRecord,
    decode_record,
    encode_record,
)
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.config_changes import (
    ConfigChange,
    ConfigOp,
    ResourceChange,
    change_configs,
    may_need_fewer,
    prepare_configs,
)
from metaquorum.quorum.controller.features import FeatureUpdate, UpgradeType, update_features
from metaquorum.quorum.controller.leaders.alter_partition import PartitionChange, alter_partition
from metaquorum.quorum.controller.leaders.elect_leaders import (
    ElectionSpec,
    ElectionType,
    elect_leader,
)
from metaquorum.quorum.controller.leaders.eligible_leaders import for_all_workers, min_isr
from metaquorum.quorum.controller.leaders.leader_selection import (
    doubted,
    needing,
    recreated,
    restarted,
    with_isr,
    with_workers,
    without_elr,
    without_log,
    without_workers,
)
from metaquorum.quorum.controller.worker_registration import (
    doubt_log,
    elect_leaders,
    fence_workers,
    lose_log,
    register_worker,
    shut_down_worker,
    unfence_worker,
    unregister_worker,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.storage.histories import CLUSTER, registration

MIN_ISR = "min.insync.replicas"
TOPIC_ID = bytes(16)
WORKERS = range(1, 5)


def nobody(worker_id: int) -> bool:
    return False


def numbers(digits: str) -> tuple[int, ...]:
    return tuple(map(int, digits))


def partition(isr: str, leader: int, elr: str = "", last_leader: int = NO_LEADER) -> PartitionImage:
    return PartitionImage(
        (1, 2, 3), numbers(isr), leader, 5, 9, elr=numbers(elr), last_leader=last_leader
    )


def live(workers: str) -> Callable[[int], bool]:
    return lambda worker_id: str(worker_id) in workers


def told(after: PartitionImage | None) -> tuple[str, int, str, int]:
    assert after is not None
    isr, elr = ("".join(map(str, each)) for each in (after.isr, after.elr))
    return isr, after.leader, elr, after.last_leader


@pytest.mark.parametrize(
    ("before", "gone", "least", "after"),
    [
        (partition("123", 1), {3}, 2, ("12", 1, "", -1)),  # the ISR is large enough
        (partition("12", 1), {2}, 2, ("1", 1, "2", -1)),
        (partition("12", 1), {1}, 2, ("2", 2, "1", -1)),
        (partition("12", 1), {2}, 1, ("1", 1, "", -1)),  # 1 may commit alone
        (partition("1", 1, "2"), {1, 2}, 2, ("", -1, "12", 1)),
        (partition("1", 1), {1}, 1, ("", -1, "1", 1)),
        (partition("123", 1), {1, 2, 3}, 1, ("", -1, "123", 1)),
        (partition("123", 1), {1, 2, 3}, 2, ("", -1, "123", 1)),
        (partition("123", 1), {3}, 9, ("12", 1, "3", -1)),  # capped at the number of replicas
    ],
)
def test_who_leaves_too_few_behind_is_eligible(
    before: PartitionImage, gone: set[int], least: int, after: tuple[str, int, str, int]
) -> None:
    found = without_workers(before, gone, lambda each: each not in gone, min_isr=least)
    assert told(found) == after
    assert found is not None
    assert found.unclean_epoch == -1


def test_one_that_is_eligible_leads_where_nobody_is_in_sync_and_not_before() -> None:
    live_elr = partition("1", 1, "2")
    assert told(without_workers(live_elr, {1}, live("23"), min_isr=2)) == ("2", 2, "1", -1)
    unled = partition("", NO_LEADER, "12", 1)
    led = with_workers(unled, live("23"), min_isr=2)
    assert told(led) == ("2", 2, "1", -1)
    assert led is not None
    assert (led.leader_epoch, led.unclean_epoch) == (6, -1)
    assert told(with_workers(unled, live("2"), min_isr=1)) == ("2", 2, "", -1)
    assert with_workers(unled, live("3"), min_isr=2) is None


def test_who_is_in_sync_again_or_among_enough_is_eligible_no_more() -> None:
    assert told(with_isr(partition("1", 1, "23"), (1, 2), 3, nobody)) == ("12", 1, "3", -1)
    assert told(with_isr(partition("1", 1, "23"), (1, 2), 2, nobody)) == ("12", 1, "", -1)
    assert told(with_isr(partition("12", 1, "3"), (1,), 3, nobody)) == ("1", 1, "23", -1)
    assert needing(partition("1", 1, "2"), 2) is None
    assert told(needing(partition("1", 1, "2"), 1)) == ("1", 1, "", -1)
    assert needing(partition("", NO_LEADER, "12", 1), 1) is None, "no record can be committed there"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (partition("", NO_LEADER, "12", 2), ("", -1, "2", 2)),
        (partition("12", 2), ("2", 2, "", -1)),
        (partition("1", 1), ("", -1, "", 1)),
        (partition("12", NO_LEADER), ("2", -1, "", -1)),  # state from before ELRs were enabled
        (partition("1", NO_LEADER), ("", -1, "", 1)),
    ],
)
def test_who_may_have_lost_something_is_not_eligible(
    before: PartitionImage, after: tuple[str, int, str, int]
) -> None:
    others = live("" if before.leader != 2 else "2")
    was_live = before.leader == 1
    found = restarted(before, 1, others, was_live=was_live, is_intact=False, min_isr=2)
    assert told(found) == after
    assert found is not None
    assert restarted(found, 1, others, was_live=False, is_intact=False, min_isr=2) is None


def test_a_process_that_was_killed_stays_eligible() -> None:
    before = partition("1", 1, "2")
    after = restarted(before, 1, live(""), was_live=True, is_intact=True, min_isr=2)
    assert told(after) == ("", -1, "12", 1)
    assert after is not None
    assert restarted(after, 2, live(""), was_live=False, is_intact=True, min_isr=2) is None


def test_the_last_leader_leads_where_nobody_has_everything_for_sure() -> None:
    unled = partition("", NO_LEADER, "", 2)
    assert with_workers(unled, live("13"), min_isr=2) is None
    led = with_workers(unled, live("123"), min_isr=2)
    assert told(led) == ("2", 2, "", -1)
    assert led is not None
    assert led.unclean_epoch == led.leader_epoch == 6
    waiting = partition("", NO_LEADER, "3", 2)
    assert with_workers(waiting, live("12"), min_isr=2) is None, "3 has all committed records"


def test_who_is_blank_is_neither_eligible_nor_to_be_waited_for() -> None:
    before = partition("", NO_LEADER, "12", 1)
    after = recreated(before, 1, live("3"), min_isr=2)
    assert told(after) == ("", -1, "2", -1)
    assert after is not None
    assert told(recreated(after, 2, live("3"), min_isr=2)) == ("", -1, "", -1)


def test_a_log_that_is_offline_is_eligible_only_as_the_last() -> None:
    assert told(without_log(partition("12", 1), 2, live("123"), min_isr=2)) == ("1", 1, "", -1)
    assert told(without_log(partition("1", 1, "2"), 2, live("1"), min_isr=2)) == ("1", 1, "", -1)
    alone = without_log(partition("1", 1), 1, live("123"), min_isr=2)
    assert told(alone) == ("", -1, "1", 1)
    assert alone is not None
    assert with_workers(alone, live("123"), min_isr=2) is None, "its log is offline"
    back = restarted(alone, 1, live("23"), was_live=True, is_intact=True, min_isr=2)
    assert back is not None
    assert told(with_workers(back, live("123"), min_isr=2)) == ("1", 1, "", -1)


def test_without_the_feature_the_last_ones_are_in_sync_again() -> None:
    assert without_elr(partition("12", 1)) is None
    assert told(without_elr(partition("1", 1, "2"))) == ("1", 1, "", -1)
    assert told(without_elr(partition("", NO_LEADER, "12", 1))) == ("12", -1, "", -1)
    doubtful = without_elr(partition("", NO_LEADER, "", 1))
    assert told(doubtful) == ("1", -1, "", -1)
    assert doubtful is not None
    led = with_workers(doubtful, live("1"))
    assert led is not None
    assert led.unclean_epoch == led.leader_epoch


# Configs that ELRs depend on


def founded(least: int, *, partitions: int = 1, feature: int = 1) -> MetadataImage:
    """Return an image with live workers 1 to 3 and a topic with replicas on all of them."""
    image, _ = replay(
        MetadataImage.empty(CLUSTER),
        [
            FeatureLevelRecord(METADATA_VERSION, 1),
            *([FeatureLevelRecord(ELIGIBLE_LEADERS, feature)] if feature else []),
            *([for_all_workers({MIN_ISR: str(least)})] if feature else []),
        ],
    )
    for worker_id in (1, 2, 3):
        image, _ = replay(image, register_worker(image, registration(worker_id)).all_records())
        epoch = image.workers[worker_id].broker_epoch
        image, _ = replay(image, unfence_worker(image, worker_id, epoch).all_records())
    records: list[MetadataRecord] = [TopicRecord("t", TOPIC_ID)]
    for number in range(partitions):
        records.append(PartitionRecord(TOPIC_ID, number, (1, 2, 3), (1, 2, 3), 1, 0, 0))
    return replay(image, records)[0]


def fenced(image: MetadataImage, *worker_ids: int) -> MetadataImage:
    for worker_id in worker_ids:
        image, _ = replay(image, fence_workers(image, {worker_id}).all_records())
    return image


def configured(
    image: MetadataImage, scope: Scope, name: str, value: str | None
) -> MetadataImage | KafkaError:
    op = ConfigOp.DELETE if value is None else ConfigOp.SET
    change = ResourceChange(scope, name, [ConfigChange(MIN_ISR, op, value)])
    decision = change_configs(image, change)
    return decision.answer or replay(image, decision.all_records())[0]


def state(image: MetadataImage | KafkaError) -> PartitionImage:
    assert isinstance(image, MetadataImage), image
    return image.topics["t"].partitions[0]


def test_min_isr_is_the_topics_own_or_that_of_all_workers() -> None:
    image = founded(2)
    assert min_isr(image, "t") == 2
    assert min_isr(founded(2, feature=0), "t") == 0
    own = configured(image, Scope.TOPIC, "t", "12")
    assert isinstance(own, MetadataImage)
    assert min_isr(own, "t") == 12


def test_elrs_go_where_enough_are_in_sync_by_another_min_isr() -> None:
    image = fenced(founded(2), 3, 2)
    assert told(state(image)) == ("1", 1, "2", -1)
    assert told(state(configured(image, Scope.TOPIC, "t", "1"))) == ("1", 1, "", -1)
    assert told(state(configured(image, Scope.TOPIC, "t", "3"))) == ("1", 1, "2", -1)
    assert told(state(configured(image, Scope.WORKER, "", "1"))) == ("1", 1, "", -1)
    own = configured(image, Scope.TOPIC, "t", "3")
    assert isinstance(own, MetadataImage)
    assert told(state(configured(own, Scope.WORKER, "", "1"))) == ("1", 1, "2", -1)
    assert told(state(configured(own, Scope.TOPIC, "t", None))) == ("1", 1, "2", -1)


def test_many_elrs_are_emptied_before_the_change_which_is_one_batch() -> None:
    image = fenced(founded(2, partitions=3), 3, 2)
    change = ResourceChange(Scope.WORKER, "", [ConfigChange(MIN_ISR, ConfigOp.SET, "1")])
    assert may_need_fewer(change)
    assert may_need_fewer(ResourceChange(Scope.TOPIC, "t", [], replace=True))
    assert not may_need_fewer(ResourceChange(Scope.TOPIC, "t", [ConfigChange("a", 0, "1")]))
    before = prepare_configs(image, [change])
    assert before.divisible
    records = before.all_records()
    assert [type(record) for record in records] == [PartitionRecord] * 3
    image, _ = replay(image, records)
    assert told(state(image)) == ("1", 1, "", -1)
    assert [type(each) for each in change_configs(image, change).all_records()] == [ConfigRecord]
    refused = ResourceChange(Scope.WORKER, "1", change.changes)
    assert prepare_configs(image, [refused]).all_records() == []


def test_no_worker_goes_by_a_min_isr_of_its_own() -> None:
    image = founded(2)
    refused = configured(image, Scope.WORKER, "1", "1")
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.INVALID_CONFIG
    removed = configured(image, Scope.WORKER, "", None)
    assert isinstance(removed, KafkaError)
    emptied = change_configs(image, ResourceChange(Scope.WORKER, "", [], replace=True))
    assert isinstance(emptied.answer, KafkaError)
    without = founded(2, feature=0)
    for name in ("1", ""):
        assert isinstance(configured(without, Scope.WORKER, name, "1"), MetadataImage)


def test_the_feature_comes_with_one_min_isr_for_all_and_goes_with_all_elrs() -> None:
    image = founded(2, feature=0)
    image, _ = replay(image, [ConfigRecord(int(Scope.WORKER), "2", MIN_ISR, "1")])
    up = [FeatureUpdate(ELIGIBLE_LEADERS, 1)]
    nodes = {"Broker 1": image.workers[1].features}
    image, _ = replay(image, update_features(image, up, nodes, {MIN_ISR: "2"}).all_records())
    assert image.worker_configs(None) == {MIN_ISR: "2"}
    assert image.worker_configs(2) == {}
    image = fenced(image, 3, 2, 1)
    assert told(state(image)) == ("", -1, "12", 1)
    down = [FeatureUpdate(ELIGIBLE_LEADERS, 0, UpgradeType.SAFE_DOWNGRADE)]
    decision = update_features(image, down, nodes, {})
    records = decision.all_records()
    assert records[-1] == FeatureLevelRecord(ELIGIBLE_LEADERS, 0)
    image, _ = replay(image, records)
    assert told(state(image)) == ("12", -1, "", -1)
    for record in image.records():
        RecordEncoder(image.features).encode(record)  # each record is valid without the feature


def test_what_only_the_feature_says_is_written_with_it_and_not_before() -> None:
    plain = partition_record(TOPIC_ID, 0, partition("12", 1))
    notification = partition_record(TOPIC_ID, 0, partition("1", 1, "2"))
    without = RecordEncoder({METADATA_VERSION: 1})
    assert without.encode(plain) == encode_record(plain, 2)
    with pytest.raises(ValueError, match="does not exist in version 2"):
        without.encode(notification)
    having = RecordEncoder({METADATA_VERSION: 1, ELIGIBLE_LEADERS: 1}).encode(notification)
    assert decode_record(having) == notification
    newer = bytearray(having)
    newer[2] = 99
    with pytest.raises(NewerVersionError):
        decode_record(bytes(newer))


def test_an_unclean_election_takes_one_that_is_eligible_first() -> None:
    image = fenced(founded(2), 3, 2, 1)
    epoch = image.workers[3].broker_epoch
    image, _ = replay(image, unfence_worker(image, 3, epoch).all_records())
    assert told(state(image)) == ("", -1, "12", 1)
    decision = elect_leader(image, ElectionSpec("t", 0, ElectionType.UNCLEAN))
    assert decision.answer is None
    lost, _ = replay(image, decision.all_records())
    assert told(state(lost)) == ("3", 3, "", -1)
    assert state(lost).unclean_epoch == state(lost).leader_epoch


# Random histories: replicas of the ISR and the ELR have all committed records

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "commit",
                "commit",
                "join",
                "join",
                "leave",
                "restart",
                "lose power",
                "unfence",
                "unfence",
                "fence",
                "shut down",
                "unregister",
                "resume",
                "elect unclean",
                "lose log",
                "begin anew",
                "min isr",
                "min isr of all",
            )
        ),
        st.sampled_from((1, 2, 3)),
        st.integers(1, 3),
    ),
    max_size=40,
)


class Logs:
    """Model of one partition: the replicas that have all committed records."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.have_all = {1, 2, 3}
        self.processes = 0
        self.is_lossless = True  # no replica has lost records, or was elected without all of them

    @property
    def state(self) -> PartitionImage:
        return self.image.topics["t"].partitions[0]

    def take(self, what: str, worker_id: int, number: int) -> None:
        """Apply one event. Raises KafkaError or KeyError if it is not possible now."""
        before, image, epoch = self.state, self.image, self.image.broker_epoch(worker_id)
        last = image.last_registration(worker_id)
        if what in ("lose power", "elect unclean", "lose log", "begin anew"):
            self.is_lossless = False
        match what:
            case "commit":
                needed = min(min_isr(image, "t"), len(before.replicas))
                if before.leader != NO_LEADER and len(before.isr) >= needed:
                    self.have_all = set(before.isr)  # the fewest replicas that may have the records
                records: list[MetadataRecord] = []
            case "join" | "leave":
                isr = {*before.isr, worker_id} if what == "join" else {*before.isr} - {worker_id}
                change = PartitionChange(
                    TOPIC_ID,
                    0,
                    before.leader_epoch,
                    before.partition_epoch,
                    tuple(isr),
                    tuple([-1] * len(isr)),
                )
                leader_epoch = image.broker_epoch(before.leader)
                decision = alter_partition(image, before.leader, leader_epoch, change)
                records = decision.all_records()
                if what == "join" and records and before.leader in self.have_all:
                    self.have_all.add(worker_id)  # it has fetched the leader's whole log
            case "restart" | "lose power":
                self.processes += 1
                process = registration(worker_id, self.processes)
                if what == "restart" and last is not None:
                    process = replace(process, previous_broker_epoch=last.broker_epoch)
                else:
                    self.have_all.discard(worker_id)
                records = register_worker(image, process).all_records()
            case "unfence":
                records = unfence_worker(image, worker_id, epoch).all_records()
            case "fence":
                records = fence_workers(image, {worker_id, number}).all_records()
            case "shut down":
                records = shut_down_worker(image, worker_id, epoch).all_records()
            case "unregister":
                records = fence_workers(image, {worker_id}).all_records()
                fenced, _ = replay(image, records)
                records += unregister_worker(fenced, worker_id).all_records()
            case "resume":  # the process never stopped; it registers again if needed
                process = replace(registration(worker_id), incarnation_id=last.incarnation_id)  # type: ignore[union-attr]
                records = register_worker(image, process).all_records()
            case "elect unclean":
                spec = ElectionSpec("t", 0, ElectionType.UNCLEAN)
                records = elect_leader(image, spec).all_records()
            case "lose log" | "begin anew":
                begins = what == "begin anew"
                if begins and not image.workers[worker_id].fenced:
                    return
                if begins:
                    self.have_all.discard(worker_id)
                records = lose_log(
                    image, worker_id, epoch, (TOPIC_ID, 0), was_recreated=begins
                ).all_records()
            case _:
                scope, name = (Scope.TOPIC, "t") if what == "min isr" else (Scope.WORKER, "")
                change_ = [ConfigChange(MIN_ISR, ConfigOp.SET, str(number))]
                records = change_configs(image, ResourceChange(scope, name, change_)).all_records()
        self.image, _ = replay(image, records)
        self.image, _ = replay(self.image, elect_leaders(self.image).all_records())
        after = self.state
        if what == "resume":
            assert {*after.isr, *after.elr} == {*before.isr, *before.elr}
        if after.unclean_epoch != before.unclean_epoch and after.leader != NO_LEADER:
            self.have_all = {after.leader}  # records that it does not have are lost

    def check(self) -> None:
        after = self.state
        assert not self.is_lossless or after.unclean_epoch == -1
        assert {*after.isr, *after.elr} <= self.have_all
        assert not {*after.isr} & {*after.elr}
        assert not {*after.isr, *after.elr, after.last_leader} & {*after.blank}
        needed = min(min_isr(self.image, "t"), len(after.replicas))
        assert len(after.isr) < needed or not after.elr
        if after.leader != NO_LEADER:
            assert after.leader in after.isr
            assert after.last_leader == NO_LEADER
        else:
            assert not after.isr
            assert not any(
                self.image.is_live(each) and each not in after.offline for each in after.elr
            )


@given(STEPS, st.integers(1, 3))
def test_who_is_in_sync_or_eligible_has_all_that_is_committed(
    steps: list[tuple[str, int, int]], least: int
) -> None:
    logs = Logs(founded(least))
    for what, worker_id, number in steps:
        try:
            logs.take(what, worker_id, number)
        except (KafkaError, KeyError):
            continue
        logs.check()


SUBSETS = [numbers(each) for each in ("", "1", "2", "12", "23", "123")]


@pytest.mark.parametrize("min_isr", [0, 1, 2, 3])
@pytest.mark.parametrize("was_live", [False, True])
def test_a_replica_that_is_doubted_later_ends_as_if_its_worker_had_lost_power(
    *, min_isr: int, was_live: bool
) -> None:
    """A worker of which only one log directory is in doubt reports its partitions one by one."""
    compared = 0
    for isr, elr in itertools.product(SUBSETS, SUBSETS):
        if set(isr) & set(elr) or (not min_isr and (elr or not isr)):
            continue
        for leader, last_leader, others in itertools.product(
            (NO_LEADER, *isr), (NO_LEADER, 1, 2), ("", "2", "23")
        ):
            if leader != NO_LEADER and (last_leader != NO_LEADER or (leader == 1) > was_live):
                continue
            if leader not in (NO_LEADER, 1) and str(leader) not in others:
                continue
            before = PartitionImage((1, 2, 3), isr, leader, 5, 9, elr=elr, last_leader=last_leader)
            is_live = set(numbers(others)).__contains__
            at_once, first = (
                restarted(before, 1, is_live, was_live=was_live, is_intact=intact, min_isr=min_isr)
                or before
                for intact in (False, True)
            )
            then = doubted(first, 1, is_live, min_isr=min_isr) or first
            assert replace(then, partition_epoch=0) == replace(at_once, partition_epoch=0), before
            assert doubted(then, 1, is_live, min_isr=min_isr) is None
            compared += 1
    assert compared > 30


def test_a_worker_of_which_one_directory_is_older_stays_in_sync_with_the_others() -> None:
    image, _ = replay(MetadataImage.empty(CLUSTER), [FeatureLevelRecord(METADATA_VERSION, 4)])
    image, _ = replay(image, register_worker(image, registration(1)).all_records())
    last = image.workers[1].broker_epoch
    alone = PartitionImage((1,), (1,), 1, 0, 0)
    image, _ = replay(
        image,
        [
            TopicRecord("t", TOPIC_ID),
            *(partition_record(TOPIC_ID, index, alone) for index in range(2)),
        ],
    )
    process = replace(registration(1, 1), newest_broker_epoch=last)
    image, _ = replay(image, register_worker(image, process).all_records())
    assert image.workers[1].previous_broker_epoch == last
    epoch = image.workers[1].broker_epoch
    image, _ = replay(image, doubt_log(image, 1, epoch, (TOPIC_ID, 1)).all_records())
    image, _ = replay(image, unfence_worker(image, 1, epoch).all_records())
    partitions = image.topics["t"].partitions
    assert [each.leader for each in partitions] == [1, 1]
    assert partitions[0].unclean_epoch == -1
    assert partitions[1].unclean_epoch == partitions[1].leader_epoch
    with pytest.raises(KafkaError):
        doubt_log(image, 1, epoch - 1, (TOPIC_ID, 0)).all_records()
    assert doubt_log(image, 1, epoch, (bytes(15) + b"x", 0)).all_records() == []
