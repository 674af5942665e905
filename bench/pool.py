"""The parent's side of the worker processes: starting them, asking them, outliving them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bench.cases import Case
from bench.environments import NotMeasuredError, environment
from bench.timing import Batch

_ROOT = Path(__file__).resolve().parent.parent


class Process:
    """One worker process, in the environment `variables` alone. Its requests raise `NotMeasuredError` when it cannot
    run or has died.
    """

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.name = name
        self._log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=_ROOT,
            env=variables,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends one request and waits for the answer.

        Raises:
            NotMeasuredError: the worker says so, or it died; the text is the reason.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            requests.write(json.dumps(request) + "\n")
            requests.flush()
        except BrokenPipeError:
            raise NotMeasuredError(self._last_words()) from None
        line = answers.readline()
        if not line:
            raise NotMeasuredError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "not_measured" in answer:
            raise NotMeasuredError(answer["not_measured"])
        return answer

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return f"worker '{self.name}' ended with code {code}: {lines[-1][:200] if lines else 'no message'}"

    def close(self) -> None:
        """Ends the process and waits for it."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Pool:
    """Worker processes of one thread count, one per environment, started when first asked for.

    Where `tuned`, Tessera's kernels are tuned at their first call; else they have the cost model's schedules.
    """

    def __init__(self, threads: int, tuned: bool = True) -> None:
        self.threads = threads
        self.tuned = tuned
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    def process(self, name: str) -> Process:
        """The worker of the environment `name`; a dead one is replaced.

        Raises:
            NotMeasuredError: the environment cannot be had on this machine.
        """
        known = self._processes.get(name)
        if known is None or not known.alive:
            if known is not None:
                known.close()
            tuned = "tuned" if self.tuned else "untuned"
            command = [sys.executable, "-m", "bench.worker", str(self.threads), name, tuned]
            known = self._processes[name] = Process(name, command, environment(name, self.threads))
        return known

    def drop(self) -> None:
        """Makes every living worker forget its calls and inputs."""
        for process in self._processes.values():
            if process.alive:
                with contextlib.suppress(NotMeasuredError):
                    process.ask(do="drop")


@dataclass(frozen=True)
class RemoteCall:
    """A prepared call in a worker process; a `bench.timing.Runner`."""

    process: Process
    contender: str
    seconds: float
    error: float | None

    def batch(self) -> Batch:
        """Times one batch over there. Raises `NotMeasuredError` when the worker dies."""
        return Batch(**self.process.ask(do="batch", contender=self.contender))


def prepare(pool: Pool, name: str, contender: str, builder: str, case: Case) -> RemoteCall:
    """Prepares and checks `builder`'s call for `case` in the environment `name`.

    Raises:
        NotMeasuredError: the environment, the library or the operation cannot be had, or the result is wrong.
    """
    process = pool.process(name)
    answer = process.ask(do="prepare", contender=contender, builder=builder, case=asdict(case))
    return RemoteCall(process, contender, answer["seconds"], answer["error"])


def prepare_job(pool: Pool, environment_name: str, contender: str, problem: Mapping[str, Any]) -> RemoteCall:
    """Prepares and checks `contender`'s call of a job, `problem` = theme, name, quick and the path of the reference.

    Raises:
        NotMeasuredError: as `prepare`.
    """
    process = pool.process(environment_name)
    answer = process.ask(do="job", contender=contender, **problem)
    return RemoteCall(process, contender, answer["seconds"], answer["error"])
