"""Requests that contradict themselves get Kafka's answers, recorded in `contradictions.json`.

All cases share one node, in the order in which Kafka was asked, as some leave groups or offsets.
"""

import json
from typing import Any

import pytest

from tests.dataplane.serving import RawClient, Simulated, run_simulated
from tests.hostile.requests.contradictions import (
    CASES,
    GOLDEN,
    Asked,
    coordinated,
    created,
    first_records,
    message_of,
    plain,
)


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    """The answers of one simulated node to all cases."""
    found: dict[str, list[Any]] = {}

    async def call(client: RawClient, asked: Asked) -> Any:
        return await client.call(asked[0], message_of(asked[0], asked[2]), asked[1])

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        rows = (await call(client, created())).topics
        for asked in (first_records(), *coordinated()):
            await call(client, asked)
        ids = {row.name: row.topic_id for row in rows}
        names = {topic_id: name for name, topic_id in ids.items()}
        for name, case in CASES.items():
            found[name] = []
            steps, answer = case(ids), None
            while True:
                try:
                    asked = steps.send(answer)
                except StopIteration:
                    break
                answer = await call(await node.connect(), asked)
                found[name].append(plain(answer, asked[1], names))

    run_simulated(scenario)
    return json.loads(json.dumps(found))


KAFKAS = json.loads(GOLDEN.read_text())["answers"]

# Case and number of the request: the error codes here, and why they are not Kafka's.
DIFFERENT: dict[tuple[str, int], tuple[set[int], str]] = {
    ("fetch: an unknown isolation level", 0): ({0, 42}, "Kafka: UNKNOWN_SERVER_ERROR"),
    ("list offsets: an unknown isolation level", 0): ({42}, "Kafka: UNKNOWN_SERVER_ERROR"),
    ("create topics v2: with a config twice", 0): ({40}, "Kafka drops one of the values"),
    ("create topics v7: with a config twice", 0): ({0, 40}, "Kafka drops one of the values"),
    ("delete_topics", 4): ({42}, "Kafka answers name and id of one topic in one row"),
    ("describe topic partitions: a topic twice", 1): ({3, 17}, "Kafka: UNKNOWN_SERVER_ERROR"),
    ("incremental_alter_configs: an unknown operation", 0): ({42}, "Kafka: UNKNOWN_SERVER_ERROR"),
    ("alter client quotas: a type twice", 0): ({42}, "Kafka drops one of the names"),
    ("alter client quotas: a type twice, differently", 0): ({42}, "Kafka drops one of the names"),
    ("coordinators", 5): ({35}, "there are no share groups"),
    ("coordinators", 6): ({35}, "there are no share groups"),
    ("update features: twice", 0): ({42}, "Kafka drops one of the levels"),
    ("update features: twice", 1): ({42}, "Kafka drops one of the levels"),
    **{
        ("transactions_in_batches", at): ({0, 29, 55}, "no client adds internal topics")
        for at in (12, 39)
    },
    **{
        ("transactions_in_batches", at): ({0}, "Kafka drops the rows of the first transaction")
        for at in (23, 50)
    },
}


def error_codes(answer: Any) -> set[int]:
    if isinstance(answer, list):
        return set().union(*map(error_codes, answer))
    if not isinstance(answer, dict):
        return set()
    own = {value for name, value in answer.items() if name.endswith("error_code")}
    return own | error_codes(list(answer.values()))


@pytest.mark.parametrize("name", CASES)
def test_contradictions_are_answered_as_by_a_real_kafka(
    name: str, answers: dict[str, list[Any]]
) -> None:
    assert len(answers[name]) == len(KAFKAS[name])
    for number, (ours, kafkas) in enumerate(zip(answers[name], KAFKAS[name], strict=True)):
        if kafkas in ("silent", "closed"):
            continue  # Kafka fails; here it is answered
        if (name, number) in DIFFERENT:
            codes, why = DIFFERENT[name, number]
            assert error_codes(ours) == codes, (name, number, why)
            assert ours != kafkas, "remove the row of the table"
        else:
            assert ours == kafkas, (name, number)
