"""A stranger, an enrolled client and a driver each try to stop the others, for five minutes.

Claims: the 95th percentile of honest requests is at most twice that of a null server under the same
load in the same run, no honest request fails, and the coordinator's disk grows by less than 50 MB.

    hostile.py [SECONDS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

from siege import Siege

from sizes import sized

SECONDS = sized(300.0, tiny=2.0)


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fared = Siege(Path(folder)).run(seconds)
    print(f"{seconds:g} s: {fared}")
    for reason in fared.failed[:5]:
        print(f"failed: {reason}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
