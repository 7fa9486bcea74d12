"""Times of records: any 64 bits, of which most are not a date."""

import json

import pytest

from metaquorum.cli.admin.records.text import TextError, from_json
from metaquorum.cli.common.times import iso_text
from metaquorum.client.utc_text import utc_text
from metaquorum.spark.loader.load_report import time_text

YEAR_2300_MS = 10_413_792_000_000


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (YEAR_2300_MS + 1, "2300-01-01T00:00:00.001Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        (2**63 - 1, str(2**63 - 1)),
        (-2, "1969-12-31T23:59:59.998Z"),
        (-(2**63), str(-(2**63))),
    ],
)
def test_every_time_has_a_text(time_ms: int, text: str) -> None:
    assert iso_text(time_ms) == text
    assert time_text(time_ms) == text
    seconds = f"{text[:10]} {text[11:19]} UTC" if text.endswith("Z") else text
    assert utc_text(time_ms) == seconds


def test_no_time_is_empty() -> None:
    assert iso_text(-1) == ""


@pytest.mark.parametrize("time_ms", [-(2**63), -2, -1, 0, YEAR_2300_MS, 2**63 - 1])
def test_a_record_that_was_consumed_can_be_produced_at_any_time(time_ms: int) -> None:
    line = json.dumps({"value": "x", "timestamp": time_ms}).encode()
    assert from_json(line).timestamp_ms == time_ms


@pytest.mark.parametrize("time_ms", [2**63, -(2**63) - 1, 1.5, "1", True])
def test_a_time_that_no_record_can_have_is_refused(time_ms: object) -> None:
    with pytest.raises(TextError, match="timestamp must be a whole number of milliseconds"):
        from_json(json.dumps({"value": "x", "timestamp": time_ms}).encode())
