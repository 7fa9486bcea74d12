"""python -m tests.chaos --minutes 10 --seed 7: three nodes, clients, and one fault after the other.

Violations are printed with the seed. The remaining folder has the nodes' logs (stderr).
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.storm import FAULTS, Storm, show

ROUND_FAULTS = 12  # faults until all records are checked, and the next topic begins


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="approximate duration")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument(
        "--fault", action="append", choices=sorted(FAULTS), help="only this fault; repeatable"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the nodes are stopped
    until = time.monotonic() + 60 * options.minutes
    seed = options.seed
    while time.monotonic() < until:
        if code := storm(seed, options.fault or sorted(FAULTS), until):
            return code
        seed += 1
    return 0


def storm(seed: int, faults: list[str], until: float) -> int:
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    one = Storm(folder, seed)
    show({"seed": seed, "folder": str(folder)})
    try:
        one.begin()
        order = [one.random.choice(faults) for _ in range(ROUND_FAULTS)]
        while order and time.monotonic() < until:
            show(one.happen(order.pop()))
        show(one.end())
    except (AssertionError, RuntimeError, TimeoutError) as failure:
        print(f"seed {seed}: {failure}\nleft in {folder}", file=sys.stderr)
        return 1
    finally:
        one.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
