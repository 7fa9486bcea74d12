"""Random transactions, truncations and restarts against a model that reads every batch."""

import shutil
import tempfile
from pathlib import Path

import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metaquorum.dataplane.log.segments.aborted import AbortedTransaction
from metaquorum.dataplane.log.segments.config import LogConfig
from tests.dataplane.log.logs import cut, open_log
from tests.dataplane.log.test_transactions import close_clean, end, index_files, send
from tests.examples import examples

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
PRODUCERS = st.integers(1, 4)


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "t-0"
        self.log = open_log(self.folder, CONFIG)
        # Offset, producer id and kind of each batch: "data", "commit" or "abort".
        self.batches: list[tuple[int, int, str]] = []
        self.high_watermark = 0

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.root)

    @rule(producer_id=PRODUCERS)
    def send(self, producer_id: int) -> None:
        offset = send(self.log, producer_id, -1)  # without a sequence, as coordinators do
        self.batches.append((offset, producer_id, "data"))

    @rule(producer_id=PRODUCERS, commit=st.booleans())
    def end(self, producer_id: int, commit: bool) -> None:
        offset = end(self.log, producer_id, commit)
        self.batches.append((offset, producer_id, "commit" if commit else "abort"))

    @rule()
    def roll(self) -> None:
        self.log.roll(0)

    @rule(part=st.floats(0, 1))
    def replicate(self, part: float) -> None:
        more = self.log.log_end_offset - self.high_watermark
        self.high_watermark += int(more * part)

    @precondition(lambda self: self.high_watermark < self.log.log_end_offset)
    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        keep = self.high_watermark + int((self.log.log_end_offset - self.high_watermark) * part)
        cut(self.log, keep)
        self.batches = [each for each in self.batches if each[0] < self.log.log_end_offset]

    @rule(clean=st.booleans(), damage=st.sampled_from(["none", "missing", "torn"]))
    def restart(self, clean: bool, damage: str) -> None:
        before = index_files(self.folder)
        if clean:
            trio.run(close_clean, self.log)
        else:
            self.log.close()
        for path in self.folder.glob("*.txnindex"):
            if damage == "torn":
                path.write_bytes(path.read_bytes()[:-1])
            elif damage == "missing" and not clean:
                path.unlink()
        self.log = open_log(self.folder, CONFIG, clean=clean)
        assert {n: b for n, b in index_files(self.folder).items() if b} == {
            n: b for n, b in before.items() if b
        }

    def model(self) -> tuple[list[AbortedTransaction], list[int]]:
        """Return the aborted transactions and the first offsets of those that are unstable."""
        open_: dict[int, int] = {}
        aborted = []
        unstable = []
        for offset, producer_id, kind in self.batches:
            if kind == "data":
                open_.setdefault(producer_id, offset)
                continue
            first = open_.pop(producer_id, None)
            if first is None:
                continue
            if offset >= self.high_watermark:
                unstable.append(first)
            if kind == "abort":
                stable = min(open_.values(), default=offset + 1)
                aborted.append(AbortedTransaction(producer_id, first, offset, stable))
        return aborted, [*unstable, *open_.values()]

    @invariant()
    def log_agrees_with_the_model(self) -> None:
        aborted, unstable = self.model()
        assert self.log.aborted_transactions(0, self.log.log_end_offset) == aborted
        found = self.log.first_unstable_offset(self.high_watermark)
        wanted = min(unstable, default=None)
        # A snapshot has no transactions whose marker is not replicated: they count as ended then.
        if wanted is None:
            assert found is None
        elif found != wanted:
            assert found is None or found > wanted
            assert wanted not in self.log_open()
        middle = self.log.log_end_offset // 2
        assert self.log.aborted_transactions(middle, middle + 1) == [
            each for each in aborted if each.first_offset <= middle <= each.last_offset
        ]

    def log_open(self) -> set[int]:
        transactions = self.log.producers.transactions
        return set() if transactions is None else set(transactions.open)


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = examples(60, stateful_step_count=40)
