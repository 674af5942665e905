"""A compiling process that fails where its job asks for it: ``python -m bench.probes.broken_compiler`` serves as
`tessera.compiler.process.worker` does.
"""

from __future__ import annotations

import os
import pickle
import time

from tessera.compiler.process.worker import answer
from tessera.tuning.measure import forkserver
from tessera.tuning.measure.forkserver import Connection

FAULT = "fault"
"""The knob of a schedule that says what goes wrong: "abort", "hang", "nonsense"."""


def serve(connection: Connection) -> None:
    """Answers requests until there are no more, or one of them is the last."""
    while (request := connection.receive()) is not None:
        fault = pickle.loads(request)[1].get(FAULT)
        if fault == "abort":
            os.abort()
        while fault == "hang":
            time.sleep(1.0)
        connection.send(b"+nonsense" if fault == "nonsense" else answer(request))


if __name__ == "__main__":
    forkserver.run(serve)
