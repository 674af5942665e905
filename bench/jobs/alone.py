"""Questions about a job that a process of its own answers: ``python -m bench.jobs.<probe> THEME NAME CONTENDER QUICK
THREADS`` prints one JSON object of numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from bench.environments import NotMeasuredError

ROOT = Path(__file__).resolve().parents[2]


def ask(
    probe: str, theme: str, name: str, contender: str, quick: bool, threads: int, variables: Mapping[str, str]
) -> dict[str, float]:
    """What ``bench.jobs.<probe>`` says in a fresh process with those environment variables. Raises NotMeasuredError
    when it fails, with its last words.
    """
    command = [sys.executable, "-m", f"bench.jobs.{probe}", theme, name, contender, str(int(quick)), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=dict(variables), check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise NotMeasuredError(f"{probe} of '{contender}': code {done.returncode}: {lines[-1][:200] if lines else ''}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def answer(measure: Callable[[str, str, str, bool], dict[str, float]]) -> None:
    """Measures what the arguments ask for and prints it. Libraries that print to stdout print to stderr instead."""
    theme, name, contender, quick, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    print(json.dumps(measure(theme, name, contender, quick == "1")), file=answers, flush=True)
