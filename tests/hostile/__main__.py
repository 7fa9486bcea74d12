"""`python -m tests.hostile --seconds 60 --seed 7`: one attack after the other on a node.

With --strangers, the node requires authentication, and the attackers are unauthenticated.

Violations are printed with the seed. The remaining folder has the node's log (stderr) and the last
frames that were sent to it (sent).
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.hostile.attacks import ATTACKS
from tests.hostile.siege import Siege, StrangersSiege
from tests.hostile.strangers import STRANGERS

ROUND_S = 6.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="approximate duration")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--attack",
        action="append",
        choices=sorted({*ATTACKS, *STRANGERS}),
        help="run only these; repeatable",
    )
    parser.add_argument(
        "--strangers", action="store_true", help="attack listeners with TLS and SASL"
    )
    parser.add_argument(
        "--together", type=int, default=3, help="maximum number of concurrent attacks"
    )
    parser.add_argument("--round-seconds", type=float, default=ROUND_S)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    draw = Random(options.seed)
    siege = (StrangersSiege if options.strangers else Siege)(folder, options.seed)
    siege.begin()
    deadline = time.monotonic() + options.seconds
    names: list[str] = []
    try:
        while time.monotonic() < deadline:
            chosen = sorted(options.attack or siege.attacks)
            names = draw.sample(chosen, min(len(chosen), draw.randrange(1, options.together + 1)))
            print(json.dumps(siege.attack(names, options.round_seconds)), flush=True)
        siege.end()
    except (AssertionError, TimeoutError) as failure:
        print(f"seed {options.seed}, {names}: {failure}\nleft in {folder}", file=sys.stderr)
        return 1
    finally:
        siege.node.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
