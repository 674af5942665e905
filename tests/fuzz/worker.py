"""A process that checks programs: a line of JSON in, a line of JSON out. It may crash or hang; `running.py` notices."""

from __future__ import annotations

import faulthandler
import json
import sys
import traceback
from typing import Any

from tests.fuzz.drawing import draw, draw_smooth
from tests.fuzz.gradients import NotDifferentiableError, check_gradients
from tests.fuzz.program import Program
from tests.fuzz.ways import WAYS, WrongResultError, check


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Checks the program of a request, or that of its seed. `verdict` is "fine", "wrong", "error", or "none" for a
    program without gradients.
    """
    seed, gradients = request["seed"], request["gradients"]
    if "program" in request:
        program = Program.from_json(request["program"])
    else:
        program = draw_smooth(seed) if gradients else draw(seed)
    told: dict[str, Any] = {"program": program.to_json(), "operators": sorted(program.operators)}
    try:
        ways = request.get("ways") or tuple(WAYS)
        checked = (
            check_gradients(program, seed, request.get("second", True)) if gradients else check(program, seed, ways)
        )
    except WrongResultError as error:
        return told | {"verdict": "wrong", "text": str(error), "way": error.way}
    except NotDifferentiableError as error:
        return told | {"verdict": "none", "text": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        text = "".join(traceback.format_exception(error)[-4:])
        return told | {"verdict": "error", "text": text, "name": type(error).__name__}
    return told | {"verdict": "fine", "judged": checked.judged, "elements": checked.elements}


def main() -> None:
    """Answers requests until there are no more. The argument says after how many seconds stacks are written down."""
    faulthandler.enable()
    for line in sys.stdin:
        faulthandler.dump_traceback_later(float(sys.argv[1]))
        print(json.dumps(answer(json.loads(line))), flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
