"""LLVM in forks of a program, one of whose threads compiles."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from pathlib import Path

from tessera.backend.llvm.machine_code import engine
from tests import forked


def test_a_fork_waits_for_who_compiles_and_can_compile_itself() -> None:
    compiling, release = threading.Event(), threading.Event()

    def compile_for_a_while() -> None:
        with engine.lock:
            compiling.set()
            release.wait(0.2)

    compiler = threading.Thread(target=compile_for_a_while)
    compiler.start()
    assert compiling.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        signal.alarm(120)
        os._exit(0 if engine.lock.acquire(timeout=60) else 1)
    compiler.join(60)
    assert os.waitpid(child, 0)[1] == 0


# llvmlite locks itself around each call, also of those that dispose of what it made. A fork that does not wait for such
# a call copies that lock as held, and the child waits for ever.
UNAWAITED = """
import traceback
import llvmlite.binding as llvm
import torch
from tessera.backend.llvm.machine_code import engine
from tessera.system import forks

def check():
    if not (engine.lock._is_owned() or forks.importing._is_owned()):
        print("".join(traceback.format_stack()[:-3]))

llvm.ffi.register_lock_callback(check, lambda: None)

from tessera import op

x = torch.rand(7, 5)
for made in (op.relu(x * 3.0 - 1.25), op.softmax(x), op.matmul(x, x.T), op.exp(x).sum(0)):
    made.eval()
op.relu(x - 2.0).inspect(level="target")
engine.host_features()
engine.LoadedCode(engine.compile_helper("define void @nothing() {\\n ret void\\n}"))
try:
    engine.compile_helper("define void @nothing() {")
except RuntimeError as refused:
    print(type(refused).__name__)
"""


def test_every_call_of_llvm_is_one_that_a_fork_waits_for(tmp_path: Path) -> None:
    done = forked.run(UNAWAITED, environment={**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)}, timeout=600)
    assert (done.returncode, done.stdout) == (0, "RuntimeError\n"), done.stderr
