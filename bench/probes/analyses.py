"""``python -m bench.probes.analyses make EVENTS FILE`` writes a trace, Parquet, or Chrome JSON where the name ends in
.json; ``run FILE`` reads it, runs every analysis, and prints seconds and peak memory as JSON. Each runs in a process of
its own, so that the peak is that of the analyses.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import polars

PIECE = 1_000_000
"""Events that are made at once; longer traces repeat them, one after the other."""
OPERATORS = 40
PACE_NS = 10_000


def make(events: int, path: Path) -> None:
    """Writes a trace of kernels of 40 operators, one event in 100 a collective, one a copy, one a sample of power."""
    from tessera.profiling.export.formats import chrome, parquet
    from tessera.profiling.trace import reading
    from tessera.profiling.trace.schema import CAPABILITIES
    from tessera.profiling.trace.table import Trace, frame

    piece = min(events, PIECE)
    draw = numpy.random.default_rng(1)
    number = numpy.arange(piece)
    operator = draw.integers(0, OPERATORS, piece)
    names = polars.Series([f"operator_{each}" for each in range(OPERATORS)])
    kind = numpy.full(piece, "kernel", dtype=object)
    for place, other in enumerate(("collective", "memcpy", "sample"), 1):
        kind[number % 100 == place] = other
    kernel, collective, copy, sample = (kind == name for name in ("kernel", "collective", "memcpy", "sample"))
    columns = {
        "kind": kind,
        "kernel_name": names.gather(operator),
        "operator": names.gather(operator),
        "start_ns": number * PACE_NS + draw.integers(0, PACE_NS, piece),
        "dur_ns": numpy.where(sample, 0, draw.lognormal(numpy.log(500 + 200 * operator), 0.1, piece).astype(int)),
        "rank": numpy.zeros(piece, numpy.int32),
        "thread_id": numpy.ones(piece, numpy.int64),
        "workers": numpy.ones(piece, numpy.int32),
        "flops": polars.Series(1e6 * (operator + 1)).zip_with(polars.Series(kernel), polars.Series([None])),
        "bytes": 1e4 * (operator + 1),
        "dtype": polars.Series(["fp32"]).gather(numpy.zeros(piece, numpy.uint32)),
        "correlation": number,
        "collective_type": polars.Series(["all_reduce", None]).gather((~collective).astype(numpy.uint32)),
        "memcpy_dir": polars.Series(["h2d", None]).gather((~copy).astype(numpy.uint32)),
        "power_w": polars.Series(draw.normal(300, 30, piece)).zip_with(polars.Series(sample), polars.Series([None])),
    }
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        once = Path(folder) / "piece.parquet"
        table = frame(columns).sort("start_ns").lazy()
        metadata = {"source": "made", "launched": events, "recorded": events, "ranks": {"0": {}}}
        capability = {name: why for name, why in CAPABILITIES.items() if name not in columns}
        parquet.write(Trace(table, metadata, capability), once)
        read = reading.read(once).events
        step = piece * PACE_NS + PACE_NS
        parts = [read.with_columns(polars.col("start_ns") + step * index) for index in range(-(-events // piece))]
        write = chrome.write if path.suffix == ".json" else parquet.write
        write(Trace(polars.concat(parts).head(events), metadata, capability), path)


def run(path: Path) -> dict[str, float]:
    """Reads the trace with every analysis, each printed. Seconds count from the open file to the last table; megabytes
    are of 10^6 bytes, `import_mb` before the trace was touched.
    """
    from tessera import analyze, profile
    from tessera.target import gpu

    target = gpu("sm90")
    polars.DataFrame({"a": [1]}).lazy().group_by("a").len().collect(engine="streaming")  # its threads
    answer = {"import_mb": _peak_mb()}
    begin = time.perf_counter()
    trace = profile.read(path)
    answer["read"] = time.perf_counter() - begin
    analyses: dict[str, Callable[[], object]] = {
        "roofline": lambda: analyze.roofline(trace, target=target),
        "stalls": lambda: analyze.stalls(trace),
        "divergence": lambda: analyze.divergence(trace),
        "collectives": lambda: analyze.collectives(trace),
        "memory": lambda: analyze.memory(trace),
        "power": lambda: analyze.power(trace),
        "advise": lambda: analyze.advise(trace, target=target),
        "compare": lambda: analyze.compare(trace, trace),
    }
    for name, analysis in analyses.items():
        start = time.perf_counter()
        if not str(analysis()):
            raise RuntimeError(f"{name} printed nothing")
        answer[name] = time.perf_counter() - start
    return answer | {"seconds": time.perf_counter() - begin, "peak_mb": _peak_mb()}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(json.dumps(run(Path(sys.argv[2]))))
