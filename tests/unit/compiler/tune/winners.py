"""Winners of row softmaxes, as a tuning finds them."""

from __future__ import annotations

import torch

from tessera import autotune, op
from tessera.compiler import planning
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device import compilers
from tessera.compiler.tune.problems import identity_of
from tessera.lazy.threads import worker_count
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Provenance


def launch(rows: int, columns: int) -> Launch:
    """What a row softmax of this shape launches now."""
    structure = op.softmax(op.tensor(torch.ones(rows, columns))).structure
    program = planning.program_of(structure)
    (found,) = launches_of(program, structure, compilers.kernel_compiler())
    return found


def remember(known: Launch, schedule: Schedule) -> None:
    """Makes a measured winner known, as a tuning does that finds it."""
    problem = known.subject.problem(known.call.shaped.extents, worker_count())
    identity = identity_of(known.subject, problem, known.call, compilers.kernel_compiler())
    autotune.database.put(
        Entry(identity, schedule, "measured", Provenance.current("revision", "on_device"), None, 1e-6)
    )
    autotune.enable(False)  # says that something changed


def narrower(known: Launch) -> Schedule:
    """A schedule that nothing but the database would choose for a launch, for which it is remembered."""
    rows, lanes = known.schedule.integers("tile")
    found = known.schedule.replace(tile=(rows, lanes // 2))
    remember(known, found)
    return found
