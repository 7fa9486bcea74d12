"""Errors of reading ranges; each message is a sentence for the user."""

from metaquorum.spark.gaps import Gap
from metaquorum.spark.offset_ranges import OffsetRange


class LoadError(Exception):
    """A range cannot be read; the message names the range, the cause and what to do."""


class DataLossError(LoadError):
    """Records of the range are lost, or replaced since the plan was made."""

    def __init__(
        self, range_: OffsetRange, gap: Gap, data_loss_option: str = "failOnDataLoss=false"
    ) -> None:
        where = f"offsets {gap.start} to {gap.end - 1} of {range_.topic}-{range_.partition}"
        detail = f": {gap.detail}" if gap.detail else ""
        super().__init__(
            f"{where} are {gap.reason.value}{detail}. "
            f"With {data_loss_option} the load continues and its report lists them."
        )
        self.range = range_
        self.gap = gap
        self._data_loss_option = data_loss_option

    def __reduce__(self) -> tuple[type["DataLossError"], tuple[OffsetRange, Gap, str]]:
        return DataLossError, (self.range, self.gap, self._data_loss_option)
