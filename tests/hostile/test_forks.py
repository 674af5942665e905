"""Forks at the worst moments: while another thread makes the program's first evaluation."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import forked
from tests.whole import examples, some

PROGRAM = """
import faulthandler, importlib.abc, os, sys, threading, warnings
import torch
from tessera import op

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
importing = threading.Event()


class Slow(importlib.abc.MetaPathFinder):
    # The thread that asks for this module is in the middle of the imports around it for a while.
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1] and not importing.is_set():
            importing.set()
            threading.Event().wait(0.3)
        return None


sys.meta_path.insert(0, Slow())
x = torch.rand(7, 5)
first = threading.Thread(target=lambda: op.relu(x * 3.0 - 1.25).eval())
first.start()
assert importing.wait(60), "the module is not imported by a first evaluation"
child = os.fork()
if child == 0:
    # A child that hangs hangs for ever, and says where; one on a busy machine may take a minute.
    faulthandler.dump_traceback_later(240, exit=True)
    right = torch.allclose(op.tanh(x * 2.0).torch(), torch.tanh(x * 2.0))
    os._exit(0 if right else 1)
status = os.waitpid(child, 0)[1]
first.join()
assert status == 0, os.waitstatus_to_exitcode(status)
"""


@pytest.mark.parametrize(
    "module",
    some(
        [
            "tessera.compiler.pipeline",
            "tessera.compiler.tune.tuning",
            "tessera.backend.llvm.machine_code.engine",
            "tessera.backend.llvm.emission.kernel",
            "llvmlite.binding",
            "xdsl.ir",
        ]
    ),
)
def test_a_fork_in_the_middle_of_the_first_evaluations_imports_evaluates(module: str, tmp_path: object) -> None:
    environment = {**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)}
    program = [sys.executable, "-c", PROGRAM, module]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_forks_at_drawn_moments_of_the_first_evaluation_evaluate() -> None:
    count = examples(6, 12)
    program = "from tests.hostile.moments import main; main()"
    done = forked.run(program, ["--count", str(count)], forked.importing_tests(), timeout=800, warm=True)
    assert (done.returncode, done.stdout) == (0, f"{count} forks, 0 hung or were wrong\n"), done.stdout + done.stderr


LOADED = """
import sys, torch
from tessera import op
from tessera.compiler import entry

entry.load()
before = set(sys.modules)
a = torch.rand(9, 33)
for made in (op.relu(a), op.matmul(a, a.T), op.softmax(a), op.conv2d(torch.rand(1, 3, 8, 8), torch.rand(4, 3, 3, 3))):
    made.eval()
print(sorted(name for name in sys.modules.keys() - before if name.split(".")[0] in ("tessera", "xdsl", "llvmlite")))
"""


def test_what_evaluations_import_is_imported_in_one_place(tmp_path: object) -> None:
    environment = {**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=180, check=True, env=environment
    )
    assert done.stdout == "[]\n"
