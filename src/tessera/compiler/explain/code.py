"""The code of kernels of a trace, made again from what their plans compute and pinned to the schedules that ran.

`python -m tessera.compiler.explain.code` answers one question after the other: a line of JSON each, so that a viewer
which loads neither torch nor LLVM can ask.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from tessera.compiler import planning
from tessera.compiler.bind.binding import steps_of
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.explain.inspection import inspect_structure
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.graph.expressions import structure_of
from tessera.errors import ProfileError, TesseraError
from tessera.ir.parsing import print_module
from tessera.lazy.policy import policy
from tessera.scheduling.language.schedule import Schedule
from tessera.system.distribution import VERSION

LEVELS: Final = {"graph": "Graph IR", "rewrites": "Rewrites", "fusion": "Fusion", "schedule": "Schedules"}
"""Levels of the whole plan, and what pages call them."""
MOST_CHARACTERS: Final = 200_000
"""Of one text; the rest is left out, and that is said."""


def code(expression: object, step: int, label: str, schedule: str) -> dict[str, Any]:
    """The texts of step `step` of a plan by level; `label` and `schedule` are those of the kernel that ran. Beside
    them `target`, what they were made for, `version`, and `estimate`, what the cost model expects of a call.

    Raises ProfileError where the step is none that can be made again.
    """
    asked, numerics = structure_of(expression)
    with policy(numerics.mode, tf32=numerics.tf32):
        structure = planning.as_planned(asked).structure
        compiler = compilers.compiler_of(structure.device)
        launches = steps_of(planning.program_of(structure), structure, compiler)
        labels = [facts.operator for facts in facts_of(launches)()]
        if not 0 <= step < len(launches) or labels[step] != label:
            raise ProfileError("the plan has other steps here than where it ran", hints=["another version, or machine"])
        launch = launches[step]
        if not isinstance(launch, Launch):
            raise ProfileError("a call of a library, which has no code of Tessera's")
        pinned = Schedule.parse(schedule) if schedule else launch.schedule
        module, backend = compiler.tile_ir(launch.subject, pinned), compiler.planner.backend_of(pinned)
        texts = {title: _told(partial(inspect_structure, asked, level)) for level, title in LEVELS.items()}
        texts["Tile IR"] = _told(lambda: print_module(module))
        texts["Target source"] = _told(lambda: str(backend.emit(module, compiler.target, "source")))
        texts["Assembly"] = _told(lambda: str(backend.emit(module, compiler.target, "asm")))
        return {
            "texts": texts,
            "target": compiler.target.name,
            "version": VERSION,
            "estimate": _estimate(launch._replace(choice=launch.choice._replace(schedule=pinned)), compiler),
        }


def _told(make: Callable[[], str]) -> str:
    """A text, at most `MOST_CHARACTERS` of it; why there is none where it cannot be made."""
    try:
        text = make()
    except TesseraError as error:
        return f"not to be had: {error.message}"
    left = len(text) - MOST_CHARACTERS
    return text if left <= 0 else f"{text[:MOST_CHARACTERS]}\n... {left:,} more characters"


def _estimate(launch: Launch, compiler: DeviceCompiler) -> dict[str, Any] | None:
    """What the cost model says of a call on a CPU: seconds, what binds it, and where its ceilings come from."""
    if compiler.model is None:
        return None
    found = compiler.estimate(launch)
    return {"us": 1e6 * found.seconds, "binding": found.binding, "ceilings": found.source}


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a question as plain JSON: what `code` gives, or `reason`, why there is none."""
    try:
        return code(question["expression"], int(question["step"]), str(question["label"]), str(question["schedule"]))
    except TesseraError as error:
        return {"reason": error.message}


def main() -> None:
    """Answers the lines of stdin."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
