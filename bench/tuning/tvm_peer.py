"""TVM's MetaSchedule in the live contest: ``python -m bench.tuning.tvm_peer`` serves requests.

It runs under a Python that has apache-tvm and xgboost, and need not have Tessera. Candidates are built and measured in
this process: the builder and the runner that come with TVM start a process for each batch, which imports TVM anew, and
take several times as long. All else is as `tune_tir` has it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms

from bench.tuning.contest_problems import Problem
from bench.tuning.contestant import Contestant, Tuned
from bench.worker import answering, serve

if TYPE_CHECKING:
    from bench.tuning.contest_problems import Floats

SEED = 7


def function_of(problem: Problem) -> Any:
    """The problem as TVM's own operators write it."""
    operands = [te.placeholder(shape, name=name) for name, shape in zip("xw", problem.operand_shapes, strict=False)]
    if problem.operation == "matmul":
        x, w = operands
        k = te.reduce_axis((0, problem.shape[2]), name="k")
        result = te.compute(problem.result_shape, lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="product")
    elif problem.operation == "softmax":
        result = topi.nn.softmax(operands[0], axis=-1)
    else:
        reach = problem.shape[-1] // 2
        result = topi.nn.depthwise_conv2d_nchw(*operands, stride=1, padding=reach, dilation=1)
    return te.create_prim_func([*operands, result])


class Artifacts:
    """The modules that were built and are to be measured, by the paths that stand for them: each in a folder of its
    own under `root`, which TVM removes once it was measured.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[str, Any] = {}

    def keep(self, module: Any) -> str:
        """Keeps a module; its path, at which no file is."""
        path = str(Path(tempfile.mkdtemp(dir=self._root)) / "module")
        self._modules[path] = module
        return path

    def take(self, path: str) -> Any:
        """The module of that path, which is forgotten."""
        return self._modules.pop(path)


@tvm.ir.utils.derived_object
class InProcessBuilder(ms.builder.PyBuilder):  # type: ignore[misc]
    """Builds candidates here, one after the other."""

    def __init__(self, artifacts: Artifacts) -> None:
        super().__init__()
        self.artifacts = artifacts

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """A result for each candidate: its name, or what was wrong."""
        return [self._built(each) for each in build_inputs]

    def _built(self, candidate: Any) -> Any:
        try:
            module = ms.builder.local_builder.default_build(candidate.mod, candidate.target, None)
        except (tvm.TVMError, RuntimeError, ValueError) as error:
            return ms.builder.BuilderResult(None, str(error))
        return ms.builder.BuilderResult(self.artifacts.keep(module), None)


@tvm.ir.utils.derived_object
class Finished(ms.runner.PyRunnerFuture):  # type: ignore[misc]
    """A measurement that is done."""

    def __init__(self, seconds: list[float] | None, error: str | None) -> None:
        super().__init__()
        self.seconds, self.error = seconds, error

    def done(self) -> bool:
        """It is."""
        return True

    def result(self) -> Any:
        """Its seconds, or what was wrong."""
        return ms.runner.RunnerResult(self.seconds, self.error)


@tvm.ir.utils.derived_object
class InProcessRunner(ms.runner.PyRunner):  # type: ignore[misc]
    """Measures candidates here, with the evaluator's settings that TVM's local runner has."""

    def __init__(self, artifacts: Artifacts) -> None:
        super().__init__()
        self.artifacts = artifacts
        self.operands: list[Any] = []
        self.runs = 0

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """A measurement for each candidate."""
        return [self._measured(each) for each in runner_inputs]

    def _measured(self, candidate: Any) -> Any:
        self.runs += 1
        device = tvm.runtime.device(str(candidate.device_type), 0)
        if not self.operands:
            infos = [info.as_json() for info in candidate.args_info]
            self.operands = ms.runner.local_runner.default_alloc_argument(device, infos, 1)
        module = self.artifacts.take(str(candidate.artifact_path))
        settings = ms.runner.EvaluatorConfig._normalized(None)
        try:
            seconds = ms.runner.local_runner.default_run_evaluator(module, device, settings, self.operands)
        except (tvm.TVMError, RuntimeError) as error:
            return Finished(None, str(error))
        return Finished(seconds, None)


class MetaScheduleTuner:
    """`meta_schedule.tune_tir`: it searches on all cores, for kernels that run on as many as OpenMP is given."""

    def tune(self, problem: Problem, operands: Sequence[Floats], trials: int) -> Tuned:
        """Tunes, and builds the best schedule."""
        threads = int(os.environ["OMP_NUM_THREADS"])
        cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
        target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
        function = function_of(problem)
        with tempfile.TemporaryDirectory(prefix="tvm-") as folder:
            artifacts = Artifacts(Path(folder))
            runner = InProcessRunner(artifacts)
            database = ms.tune_tir(
                function,
                target,
                folder,
                trials,
                builder=InProcessBuilder(artifacts),
                runner=runner,
                seed=SEED,
            )
            schedule = ms.tir_integration.compile_tir(database, function, target)
        entry = tvm.compile(schedule.mod, target=target)["main"]
        device = tvm.cpu(0)
        tensors = [tvm.runtime.tensor(operand, device) for operand in operands]
        out = tvm.runtime.empty(problem.result_shape, "float32", device)

        def call() -> object:
            return entry(*tensors, out)

        def result() -> Floats:
            found: Floats = out.numpy()
            return found

        return Tuned(runner.runs, str(schedule.trace), call, result)


def main() -> None:
    """Serves until there are no more requests."""
    with answering() as (requests, answers):
        serve(Contestant(MetaScheduleTuner()), requests, answers)


if __name__ == "__main__":
    main()
