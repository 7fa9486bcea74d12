"""The protocol of a classic group, with clients that follow it or break it, and failing writes."""

import random
from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.dataplane.coordinators.group.group_driver import Driver
from tests.dataplane.coordinators.group.group_world import (
    BREACHES,
    DELAY_MS,
    PROTOCOLS,
    REBALANCES_MS,
    SESSIONS_MS,
    Client,
    World,
)

SECONDS = (0.5, 2.0, 5.0, 9.0, 25.0)

client_shapes = st.tuples(
    st.booleans(),  # static
    st.sampled_from((3, 8, 9)),
    st.sampled_from(SESSIONS_MS),
    st.sampled_from(REBALANCES_MS),
    st.sampled_from(PROTOCOLS),
)


def world_of(shapes: list[tuple[bool, int, int, int, tuple[object, ...]]]) -> World:
    clients = [
        Client(f"c{number}", f"i{number}" if static else None, version, session, rebalance, rows)  # type: ignore[arg-type]
        for number, (static, version, session, rebalance, rows) in enumerate(shapes)
    ]
    driver = Driver(commits=False, initial_rebalance_delay_ms=DELAY_MS)
    return World(driver, clients)


class GroupMachine(RuleBasedStateMachine):
    world: World

    @initialize(shapes=st.lists(client_shapes, min_size=2, max_size=6))
    def start(self, shapes: list[tuple[bool, int, int, int, tuple[object, ...]]]) -> None:
        self.world = world_of(shapes)

    def client(self, number: int) -> Client:
        client = self.world.clients[number % len(self.world.clients)]
        self.world.collect(client)
        return client

    @rule(turns=st.integers(1, 6))
    def follow_the_protocol(self, turns: int) -> None:
        for _ in range(turns):
            for client in self.world.clients:
                self.world.act(client)
            self.world.driver.commit_all()
            self.world.advance(1)

    @rule(number=st.integers(0, 5))
    def act(self, number: int) -> None:
        self.world.act(self.client(number))

    @rule(number=st.integers(0, 5), kind=st.sampled_from(sorted(BREACHES)))
    def break_the_protocol(self, number: int, kind: str) -> None:
        BREACHES[kind](self.world, self.client(number))

    @rule(number=st.integers(0, 5), protocols=st.sampled_from(PROTOCOLS))
    def change_metadata(self, number: int, protocols: tuple[object, ...]) -> None:
        client = self.client(number)
        client.protocols = protocols  # type: ignore[assignment]
        self.world.start_join(client)

    @rule(seconds=st.sampled_from(SECONDS))
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule()
    def commit(self) -> None:
        if self.world.driver.in_flight:
            self.world.driver.commit()

    @rule()
    def fail_write(self) -> None:
        if self.world.driver.in_flight:
            self.world.driver.fail()

    @rule(committed=st.integers(0, 2))
    def fail_over(self, committed: int) -> None:
        self.world.failover(committed)

    @invariant()
    def check(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


GroupMachine.TestCase.settings = settings(stateful_step_count=50)
TestGroupProtocol = GroupMachine.TestCase


def play(seed: int, steps: int = 300) -> Counter[str]:
    """Play one random world, which checks itself, and return what has happened in it."""
    draw = random.Random(seed)
    world = world_of(
        [
            (
                draw.random() < 0.5,
                draw.choice((3, 8, 9)),
                draw.choice(SESSIONS_MS),
                draw.choice(REBALANCES_MS),
                draw.choice(PROTOCOLS),
            )
            for _ in range(draw.randint(2, 6))
        ]
    )
    for _ in range(steps):
        client = draw.choice(world.clients)
        world.collect(client)
        kind = draw.random()
        if kind < 0.7:
            world.act(client)
            world.driver.commits = draw.random() < 0.7
            world.advance(draw.choice((0.1, 0.3, 1.0)))
        elif kind < 0.85:
            BREACHES[draw.choice(sorted(BREACHES))](world, client)
        elif kind < 0.9:
            if world.driver.in_flight:
                draw.choice((world.driver.commit, world.driver.fail))()
        elif kind < 0.91:
            world.failover(draw.randint(0, 2))
        else:
            world.advance(draw.choice(SECONDS))
        world.check()
    world.settle()
    return world.seen


def test_random_worlds_reach_every_state_and_answer() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        seen += play(seed)
    expected = {
        *("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "failover"),
        *("join NONE", "join MEMBER_ID_REQUIRED", "join UNKNOWN_MEMBER_ID"),
        *("join NOT_COORDINATOR", "join COORDINATOR_NOT_AVAILABLE"),
        *("sync NONE", "sync REBALANCE_IN_PROGRESS", "sync UNKNOWN_MEMBER_ID"),
        *("sync NOT_COORDINATOR", "sync COORDINATOR_NOT_AVAILABLE", "sync ILLEGAL_GENERATION"),
        *("heartbeat NONE", "heartbeat REBALANCE_IN_PROGRESS", "heartbeat UNKNOWN_MEMBER_ID"),
        *("heartbeat ILLEGAL_GENERATION", "partitions owned"),
    }
    assert expected - {name for name, count in seen.items() if count > 0} == set()
