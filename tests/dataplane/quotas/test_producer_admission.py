"""Shares of clients in the producers that a worker remembers: what each may bring, and no other."""

import pytest

from metaquorum.config.resolution import Configs, WorkerLayers
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.quotas import producer_admission
from metaquorum.dataplane.quotas.client_state import ClientShare, share_of
from metaquorum.dataplane.quotas.producer_admission import ProducerAdmission, UnknownProducerIdError
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

MOST = 20
PERIOD_S = 100.0
GIVEN_OUT = 1000


def configs(most: int = MOST, period_s: float = PERIOD_S) -> Configs:
    return WorkerLayers(
        {
            "max.producer.ids.per.client": str(most),
            "producer.id.expiration.ms": str(int(period_s * 1000)),
        }
    ).worker_configs()


def client(host: str, principal: str = "User:ANONYMOUS") -> Client:
    found = Client((host, 50_000), "PLAINTEXT")
    found.principal = principal
    return found


ONE, ANOTHER = client("10.0.0.1"), client("10.0.0.2")


class Story:
    def __init__(self) -> None:
        self.now = 0.0
        self.admission = ProducerAdmission(GIVEN_OUT, lambda: self.now, configs())

    def admitted(self, one: Client = ONE, *, most: int = 1000) -> int:
        """Bring new producers until one is refused; return the number before."""
        for count in range(most):
            try:
                self.admission.admit(one, 7)
            except KafkaError:
                return count
        return most


def test_clients_that_use_up_their_share_stop_no_others() -> None:
    story = Story()
    assert story.admitted() == MOST // 2
    assert story.admitted(ANOTHER) == MOST // 2
    assert story.admitted(client("10.0.0.1", "User:alice")) == MOST // 2
    assert story.admitted() == 0


def test_within_the_expiry_a_share_has_no_more_producers_than_the_config_says() -> None:
    story = Story()
    count = story.admitted()
    for _ in range(int(PERIOD_S) - 1):
        story.now += 1.0
        count += story.admitted()
    assert MOST - 2 <= count <= MOST
    story.now += PERIOD_S
    assert story.admitted() == MOST // 2


def test_a_refusal_says_when_the_next_may_come() -> None:
    story = Story()
    story.admitted()
    refusal = r"max\.producer\.ids\.per\.client permits .* the next may come in 10\.0 s"
    with pytest.raises(KafkaError, match=refusal) as refused:
        story.admission.admit(ONE, 7)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    story.now += 9.9
    assert story.admitted() == 0
    story.now += 0.2
    assert story.admitted() == 1


def test_changed_configs_are_in_force_at_once() -> None:
    story = Story()
    story.admitted()
    story.admission.update(configs(most=2 * MOST))
    assert story.admitted() == MOST // 2
    story.admission.update(configs(most=2))
    story.now += PERIOD_S / 2
    assert story.admitted() == 0
    story.admission.update(configs(period_s=1.0))
    story.now += 10.0
    assert story.admitted() == MOST // 2


def test_an_id_that_is_not_given_out_is_no_use_and_refused_for_good() -> None:
    story = Story()
    admission = story.admission
    with pytest.raises(UnknownProducerIdError) as refused:
        admission.admit(ONE, GIVEN_OUT)
    error = refused.value
    assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert error.settled(is_caught_up=False) is error
    assert error.settled(is_caught_up=True).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert admission.forged_count == 1
    admission.next_producer_id = GIVEN_OUT + 1000
    assert error.settled(is_caught_up=True) is error  # the client sends it again
    admission.admit(ONE, GIVEN_OUT)
    assert story.admitted() == MOST // 2 - 1


def test_shares_are_forgotten_when_they_are_unused_again(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    for number in range(100):
        story.admission.admit(client(f"10.0.1.{number}"), 7)
    assert len(story.admission) == 100
    story.now += PERIOD_S
    for number in range(50):
        story.admission.admit(client(f"10.0.2.{number}"), 7)
    assert len(story.admission) == 50
    # Above the maximum, the one that has not been used for longest.
    monkeypatch.setattr(producer_admission, "MAX_SHARES", 50)
    story.admitted(ONE)
    assert len(story.admission) <= 50
    assert story.admitted(ONE) == 0


def test_the_log_names_the_clients_that_were_refused_once() -> None:
    story = Story()
    assert story.admission.newly_refused() is None
    story.admitted()
    for number in range(12):
        story.admitted(client(f"10.0.1.{number}"))
    story.admitted(client("10.0.0.1", "User:a\nb"))
    story.admitted()
    line = story.admission.newly_refused()
    assert line is not None
    assert line.startswith("2 of User:ANONYMOUS at 10.0.0.1; ")
    assert "and 4 more" in line
    assert "\n" not in line
    assert story.admission.newly_refused() is None
    assert story.admission.refused_count == 15


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.168.1.2", "192.168.1.2"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:ffff:ffff:ffff", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.168.1.2", "192.168.1.2"),
        ("a name", "a name"),
        ("a:b", "a:b"),
    ],
)
def test_a_host_has_one_share_for_all_addresses_that_it_can_choose(host: str, network: str) -> None:
    assert share_of(client(host, "User:bob")) == ClientShare("User:bob", network)
