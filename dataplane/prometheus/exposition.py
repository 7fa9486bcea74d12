"""Prometheus' text format: one line per sample, grouped by metric."""

from collections.abc import Iterable
from typing import Final

from metaquorum.dataplane.instruments.histogram import Histogram
from metaquorum.dataplane.prometheus.catalog import METRICS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


def label_text(text: str) -> str:
    """Return `text` escaped for a label value."""
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text.encode(errors="replace").decode() if not text.isascii() else text


def labels(pairs: Iterable[tuple[str, object]]) -> str:
    inner = ",".join(f'{name}="{label_text(str(value))}"' for name, value in pairs)
    return f"{{{inner}}}" if inner else ""


class Page:
    """One page of metrics: the sample lines of each metric of the catalogue."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def lines(self, name: str) -> list[str]:
        """Return the list of the metric's lines, `name{labels} value`, for adding many samples."""
        found = self._lines.get(name)
        if found is None:
            assert name in METRICS, f"{name} is not in the table"
            found = self._lines[name] = []
        return found

    def add(self, name: str, value: float, **of: object) -> None:
        self.lines(name).append(f"{name}{labels(of.items())} {value}")

    def add_times(self, name: str, times: Histogram, now: float, **of: object) -> None:
        """Add the quantiles, sum and count of `times` in milliseconds, Kafka's unit."""
        lines = self.lines(name)
        for share, seconds in zip(QUANTILES, times.quantiles(QUANTILES, now), strict=True):
            shown = labels([*of.items(), ("quantile", share)])
            lines.append(f"{name}{shown} {round(seconds * 1000, 4)}")
        shown = labels(of.items())
        lines.append(f"{name}_sum{shown} {round(times.total_s * 1000, 3)}")
        lines.append(f"{name}_count{shown} {times.count}")

    def texts(self) -> Iterable[bytes]:
        """Yield the page, one metric at a time."""
        for name, lines in self._lines.items():
            if lines:
                metric = METRICS[name]
                head = [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind.value}"]
                yield "\n".join([*head, *lines, ""]).encode()
