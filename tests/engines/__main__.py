"""``python -m tests.engines``: opens our exports in Perfetto's trace processor and in HolisticTraceAnalysis, and says
where these see something else than was recorded. What is not installed here is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.engines import checks, perfetto, recorded
from tests.unit.viewer.made import whole_run


def main() -> int:
    """The number of differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines")
    parser.add_argument("--node-modules", type=Path, default=Path("node_modules"), help="where npm installed packages")
    modules = parser.parse_args().node_modules
    runs = {"two ranks": whole_run(), "a GPU": recorded.trace()}
    found: list[str] = []
    for name, reason in (("perfetto", perfetto.missing(modules)), ("holistic", checks.holistic_missing())):
        if reason is not None:
            print(f"{name}: skipped: {reason}")
            continue
        own: list[str] = []
        for title, run in runs.items():
            if name == "perfetto":
                own += [f"{title}: {each}" for each in checks.perfetto_differences(run, run, modules)]
        if name == "holistic":
            own += checks.holistic_differences(runs["a GPU"], runs["a GPU"])
        print("\n".join(own) or f"{name}: the same as recorded")
        found += own
    return len(found)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
