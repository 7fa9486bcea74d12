"""Draw diagrams and the plot of a move: `python docs/images/draw.py` writes the SVG files.

A diagram is a list of participants and of steps, in the order of time. No library that needs no
program outside Python draws sequence diagrams, so this one writes SVG by itself. Colours follow the
reader's light or dark setting.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TypeAlias

HERE = Path(__file__).parent
_Point: TypeAlias = tuple[float, float]
STEP = 34  # pixels between steps
TOP = 66
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .head { font-weight: 600 }
  .small { font-size: 11.5px; fill: #59636e }
  .box { fill: #eef3fb; stroke: #7a93b8 }
  .inner { fill: #ffffff; stroke: #9fb1cc }
  .line { stroke: #9aa4b0; stroke-width: 1 }
  .life { stroke: #c3cbd5; stroke-dasharray: 3 4 }
  .arrow { stroke: #2f5fa8; stroke-width: 1.4; fill: none }
  .back { stroke: #2f5fa8; stroke-width: 1.4; stroke-dasharray: 5 4; fill: none }
  .tip { fill: #2f5fa8 }
  .note { fill: #fdf6dd; stroke: #d8c27a }
  .ground { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9da7b3 }
    .box { fill: #1b2a41; stroke: #5a7bad } .inner { fill: #10161f; stroke: #47618a }
    .line { stroke: #5b6570 } .life { stroke: #47505a } .ground { fill: #10161f }
    .arrow, .back { stroke: #7aa7ec } .tip { fill: #7aa7ec }
    .note { fill: #3a3418; stroke: #8a7a3a }
  }
"""


@dataclass(frozen=True)
class Call:
    """An arrow from one participant to another; `back` draws it dashed, as an answer."""

    source: int
    target: int
    text: str
    back: bool = False


@dataclass(frozen=True)
class Note:
    """An action of one participant, or the state that it is in."""

    at: int
    text: str


@dataclass(frozen=True)
class Phase:
    """A heading across the diagram."""

    text: str


def sequence(
    title: str,
    participants: Sequence[str],
    steps: Sequence[Call | Note | Phase],
    *,
    gap: int = 190,
) -> str:
    """Return the SVG of a sequence diagram. `gap`: pixels between participants."""
    margin = 105
    width = 2 * margin + gap * (len(participants) - 1)
    height = TOP + STEP * (len(steps) + 1)
    at = [margin + gap * number for number in range(len(participants))]
    parts = []
    for x, name in zip(at, participants, strict=True):
        parts.append(f'<line class="life" x1="{x}" y1="48" x2="{x}" y2="{height - 12}"/>')
        parts.append(f'<rect class="box" x="{x - 80}" y="14" width="160" height="34" rx="5"/>')
        parts.append(_text(x, 36, name, "head"))
    y = TOP
    for step in steps:
        y += STEP
        match step:
            case Phase(text):
                parts.append(f'<line class="line" x1="12" y1="{y}" x2="{width - 12}" y2="{y}"/>')
                parts.append(_text(16, y - 6, text, "head", anchor="start"))
            case Note(where, text):
                wide = max(60, 7 * len(text) + 16)
                left = min(max(6, at[where] - wide / 2), width - wide - 6)
                parts.append(
                    f'<rect class="note" x="{left:.0f}" y="{y - 19}" width="{wide}" height="24"'
                    ' rx="3"/>'
                )
                parts.append(_text(left + wide / 2, y - 3, text, ""))
            case Call(source, target, text, back):
                parts.append(_arrow(at[source], at[target], y, back))
                middle = (at[source] + at[target]) / 2
                wide = 6.6 * len(text) + 8
                parts.append(
                    f'<rect class="ground" x="{middle - wide / 2:.0f}" y="{y - 19}"'
                    f' width="{wide:.0f}" height="15"/>'
                )
                parts.append(_text(middle, y - 7, text, "small"))
    return _svg(title, width, height, parts)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return (
        f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _arrow(x1: float, x2: float, y: float, back: bool) -> str:
    direction = 1 if x2 > x1 else -1
    tip = x2 - 8 * direction
    return (
        f'<line class="{"back" if back else "arrow"}" x1="{x1}" y1="{y}" x2="{tip}" y2="{y}"/>'
        f'<path class="tip" d="M{x2} {y} L{tip} {y - 4} L{tip} {y + 4} Z"/>'
    )


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f'<rect class="ground" width="{width}" height="{height}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def produce() -> str:
    """Return the path of a produce with acks=all and two followers."""
    return sequence(
        "The path of a produce with acks=all",
        ["producer", "leader: network", "leader: partition", "leader: log", "followers"],
        [
            Call(0, 1, "Produce"),
            Note(1, "decode the frame"),
            Call(1, 2, "leader? enough in-sync replicas?"),
            Note(2, "check CRC, records, producer sequence"),
            Call(2, 3, "append: offset and leader epoch set"),
            Note(3, "page cache; no sync per append"),
            Note(2, "complete the long polls of followers"),
            Call(2, 4, "the new records", back=True),
            Note(4, "append"),
            Call(4, 2, "Fetch from offset n + 1"),
            Note(2, "all in-sync replicas have n: move the high watermark"),
            Call(2, 1, "the delayed response completes", back=True),
            Note(1, "charge the quota, set the throttle time"),
            Call(1, 0, "offset, throttle time", back=True),
        ],
    )


def metadata_change() -> str:
    """Return the path of a metadata change: CreateTopics."""
    return sequence(
        "The path of a metadata change",
        ["client", "worker", "active controller", "other voters", "all workers"],
        [
            Call(0, 1, "CreateTopics"),
            Call(1, 2, "create_topics"),
            Note(2, "decide on the decided image"),
            Note(2, "append a batch of records; sync the journal"),
            Call(2, 3, "append entries"),
            Note(3, "append; sync"),
            Call(3, 2, "acknowledged", back=True),
            Note(2, "a majority has it: committed"),
            Call(2, 4, "records, and the commit index"),
            Note(4, "replay into the image; create logs; lead or follow"),
            Call(2, 1, "the outcome, and its offset", back=True),
            Note(1, "wait until the own image has that offset"),
            Call(1, 0, "topic id; no error", back=True),
        ],
    )


def election() -> str:
    """Return the election of a controller, then of a partition leader."""
    return sequence(
        "A node dies that is the active controller and leads partitions",
        ["node 1", "node 2 (dies)", "node 3", "clients"],
        [
            Phase("Raft elects a controller"),
            Note(1, "SIGKILL"),
            Note(2, "no append from the leader: election timeout"),
            Call(2, 0, "pre-vote: would you vote for me?"),
            Call(0, 2, "yes: no leader here either", back=True),
            Call(2, 0, "request vote, term 8"),
            Note(0, "log not newer: vote; sync the vote"),
            Call(0, 2, "granted: majority of 3", back=True),
            Note(2, "commit an entry of term 8: active"),
            Phase("The controller elects partition leaders"),
            Note(2, "no heartbeats from worker 2: fence it"),
            Note(2, "leader = next in-sync replica; leader epoch + 1"),
            Call(2, 0, "partition records: node 1 leads"),
            Note(0, "lead with the new epoch"),
            Call(3, 0, "Metadata, then Produce again"),
            Call(0, 3, "acknowledged; duplicates are recognized", back=True),
        ],
    )


def throttle() -> str:
    """Return the life of a throttle: a producer above its byte rate."""
    return sequence(
        "The life of a throttle: quota 10 kB/s, window 10 s",
        ["client", "connection", "quota manager", "mq-admin"],
        [
            Call(0, 1, "Produce, 150 kB at once"),
            Note(1, "append to the log; the records are safe"),
            Call(1, 2, "used: 150 kB"),
            Note(2, "U = 15 kB/s; delay = T (U - Q) / Q = 5 s"),
            Call(2, 1, "throttle_time_ms = 5000", back=True),
            Call(1, 0, "response, throttle_time_ms = 5000", back=True),
            Note(1, "muted: nothing is read for 5 s"),
            Call(0, 1, "Produce (waits in the socket)"),
            Call(3, 2, "quotas explain"),
            Call(2, 3, "rule 7, use 150 %, delay 5 s", back=True),
            Note(1, "5 s are over: unmuted"),
            Note(1, "append the waiting request"),
            Call(1, 0, "response", back=True),
        ],
    )


def parts() -> str:
    """Return the map of parts: clients, workers, controllers, and their files."""
    width, height = 860, 430
    drawn: list[str] = []

    def box(x: int, y: int, wide: int, high: int, text: str, kind: str = "box") -> None:
        drawn.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{wide}" height="{high}" rx="6"/>'
        )
        drawn.append(_text(x + wide / 2, y + 22, text, "head"))

    def small(x: int, y: int, text: str) -> None:
        drawn.append(_text(x, y, text, "small"))

    def arrow(x1: int, y1: int, x2: int, y2: int) -> None:
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 9 * dx, y2 - 9 * dy
        drawn.append(f'<path class="arrow" d="M{x1} {y1} L{bx:.1f} {by:.1f}"/>')
        drawn.append(
            f'<path class="tip" d="M{x2} {y2} L{bx - 4 * dy:.1f} {by + 4 * dx:.1f}'
            f' L{bx + 4 * dy:.1f} {by - 4 * dx:.1f} Z"/>'
        )

    box(20, 20, 250, 62, "Kafka clients")
    small(145, 66, "librdkafka, Java, Go, Python, ...")
    box(305, 20, 250, 62, "tools")
    small(430, 66, "mq-admin, Kafka's tools, Prometheus")
    box(590, 20, 250, 62, "loads")
    small(715, 66, "mq-load, Spark: ranges to Parquet")
    for x in (145, 430, 715):
        arrow(x, 82, x, 148)
    small(480, 118, "Kafka protocol")
    for number, x in enumerate((20, 305, 590), 1):
        box(x, 150, 250, 250, f"node {number}")
        box(x + 14, 186, 222, 92, "worker (broker)", "inner")
        small(x + 125, 232, "connections, quotas, handlers")
        small(x + 125, 250, "partition logs: leader or follower")
        small(x + 125, 268, "metadata image")
        box(x + 14, 302, 222, 80, "controller", "inner")
        small(x + 125, 348, "votes in the Raft quorum;")
        small(x + 125, 366, "keeps the metadata log")
        arrow(x + 125, 302, x + 125, 280)
        small(x + 190, 295, "follow")
    for x in (270, 555):
        arrow(x + 35, 232, x + 2, 232)
        arrow(x, 246, x + 33, 246)
        arrow(x + 35, 342, x + 2, 342)
        arrow(x, 356, x + 33, 356)
    small(287, 222, "fetch")
    small(572, 222, "fetch")
    small(287, 332, "Raft")
    small(572, 332, "Raft")
    return _svg("Parts of a metaquorum cluster", width, height, drawn)


def throttled_move() -> str:
    """Return the plot of a measured move: bytes per second of its leader, and the replica's lag."""
    with (HERE / "throttled-move.csv").open() as file:
        rows = [tuple(map(float, row.values())) for row in csv.DictReader(file)]
    limit, width, left = 2.0, 640, 60
    seconds, most_lag = rows[-1][0], 50_000 * ceil(max(lag for _, _, lag in rows) / 50_000)
    parts = []

    def panel(top: int, name: str, most: float, unit: str, values: Sequence[_Point]) -> None:
        bottom = top + 120

        def y_of(value: float) -> float:
            return bottom - 110 * value / most

        parts.append(_text(left, top, name, "head", anchor="start"))
        for value in (0.0, most / 2, most):
            y = y_of(value)
            parts.append(
                f'<line class="line" x1="{left}" y1="{y:.1f}" x2="{width - 20}" y2="{y:.1f}"/>'
            )
            parts.append(_text(left - 6, y + 4, f"{value:g}{unit}", "small", anchor="end"))
        points = " ".join(
            f"{left + (width - 20 - left) * at / seconds:.1f},{y_of(value):.1f}"
            for at, value in values
        )
        parts.append(f'<polyline class="arrow" points="{points}"/>')

    steps = [
        (at, (sent - before) / (at - since) / 1e6)
        for (since, before, _), (at, sent, _) in pairwise(rows)
    ]
    panel(
        24,
        f"sent by the leader, MB/s; leader.replication.throttled.rate is {limit:g}",
        4,
        "",
        steps,
    )
    lags = [(at, lag / 1000) for at, _, lag in rows if lag]
    panel(184, "SumReplicaLag of the new replica, thousands of records", most_lag / 1000, "", lags)
    for at in range(0, int(seconds) + 1, 20):
        x = left + (width - 20 - left) * at / seconds
        parts.append(_text(x, 322, f"{at} s", "small"))
    return _svg("A move with a throttle of 2 MB/s", width, 336, parts)


DRAWINGS = {
    "parts.svg": parts,
    "path-of-a-produce.svg": produce,
    "path-of-a-metadata-change.svg": metadata_change,
    "election.svg": election,
    "life-of-a-throttle.svg": throttle,
    "throttled-move.svg": throttled_move,
}


def main() -> None:
    """Write every drawing that has changed."""
    for name, draw in DRAWINGS.items():
        (HERE / name).write_text(draw())


if __name__ == "__main__":
    main()
