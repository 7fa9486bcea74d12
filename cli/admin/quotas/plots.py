"""Plots of quota timelines, as text and as images."""

from collections.abc import Iterator, Sequence
from typing import Final

import click

from metaquorum.cli.admin.quotas.traffic import Timeline
from metaquorum.cli.common.output import size_text

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
WIDTH: Final = 72
IMAGES: Final = (".png", ".svg")


def text_plot(timeline: Timeline) -> Iterator[str]:
    """Yield lines that plot rate, delay and queue over time, one or more steps per column."""
    steps, step_s = timeline.steps, timeline.step_s
    rates = _columns([step.passed_bytes / step_s for step in steps])
    delays = _columns([step.delay_s for step in steps])
    queues = _columns([step.queue_bytes for step in steps])
    yield from _bars("rate", rates, 6, lambda most: f"{size_text(round(most))}/s")
    yield from _bars("delay", delays, 3, lambda most: f"{most:.1f} s")
    yield from _bars("queue", queues, 3, lambda most: size_text(round(most)))
    end = f"{timeline.seconds:g} s"
    yield f"{'':>12} 0 s{end:>{max(len(end), len(rates) - 3)}}"


def _columns(values: Sequence[float]) -> list[float]:
    """Return at most WIDTH values, each the maximum of several."""
    each = -(-len(values) // WIDTH)
    return [max(values[at : at + each]) for at in range(0, len(values), each)]


def _bars(title: str, values: Sequence[float], height: int, text: object) -> Iterator[str]:
    assert callable(text)
    most = max(values)
    eighths = [round(value / most * height * 8) if most else 0 for value in values]
    for row in range(height - 1, -1, -1):
        label = text(most) if row == height - 1 else title if row == 0 else ""
        line = "".join(_BLOCKS[min(8, max(0, each - row * 8))] for each in eighths)
        yield f"{label:>12} {line}".rstrip()


def write_image(path: str, timelines: Sequence[Timeline]) -> None:
    """Write a PNG or SVG file. Raises click.UsageError if matplotlib is not installed."""
    if not path.lower().endswith(IMAGES):
        raise click.UsageError(f"--image takes a name that ends in {' or '.join(IMAGES)}")
    try:
        import matplotlib
    except ImportError:
        raise click.UsageError(
            "--image needs matplotlib, which is not installed: "
            "pip install 'metaquorum[plot]', or omit --image"
        ) from None
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    rate, delay, queue = figure.subplots(3, 1, sharex=True)
    for index, timeline in enumerate(timelines):
        times = [step.at_s for step in timeline.steps]
        colour = f"C{index}"
        label = f"quota {size_text(round(timeline.quota))}/s"
        rates = [step.passed_bytes / timeline.step_s for step in timeline.steps]
        rate.step(times, rates, where="post", color=colour, label=label)
        rate.axhline(timeline.quota, color=colour, linestyle=":", linewidth=1)
        delays = [step.delay_s for step in timeline.steps]
        delay.step(times, delays, where="post", color=colour)
        queue.plot(times, [step.queue_bytes for step in timeline.steps], color=colour)
    rate.set_ylabel("bytes/s")
    delay.set_ylabel("delay, s")
    queue.set_ylabel("queue, bytes")
    queue.set_xlabel("seconds")
    rate.legend(loc="upper right")
    try:
        figure.savefig(path)
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from None
