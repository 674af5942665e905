"""Two ranks on two hosts of a slow link: namespaces of networks of this machine, joined by a virtual cable that the
kernel's traffic control slows down (`tc tbf`). What is measured is measured; only the cable is not a real one.

    python -m bench.shaped_link --rate 2gbit [--threads 1] bench/mesh_shaped.py [--quick]

Prints what rank 0 prints. Namespaces end with their processes, so that nothing is left behind.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ADDRESSES: Final = ("10.77.0.1", "10.77.0.2")
CABLE: Final = ("tessera0", "tessera1")
PORT: Final = 29_577
SHAPE: Final = "burst 256kb latency 50ms"
INSIDE: Final = "--inside"
_WHEN_TOLD: Final = "import os, sys; sys.stdin.readline(); os.execvp(sys.argv[1], sys.argv[1:])"


def why_not() -> str | None:
    """Why there is no such link here; None where there is one."""
    script = (
        f"ip link add name {CABLE[0]} type veth peer name {CABLE[1]} && ip link set {CABLE[0]} up"
        f" && tc qdisc add dev {CABLE[0]} root tbf rate 1gbit {SHAPE}"
    )
    try:
        done = subprocess.run([*_apart(), "sh", "-c", script], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip().partition("\n")[0] or f"unshare: {done.returncode}"


def command(arguments: Sequence[str]) -> list[str]:
    """What runs this module in a namespace of its own."""
    return [*_apart(), sys.executable, "-m", "bench.shaped_link", INSIDE, *arguments]


def _apart() -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--net"]


def _rank(rank: int, script: Sequence[str], threads: int) -> subprocess.Popen[str]:
    """A rank that begins when it is told: the second in a namespace of its own."""
    variables = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": CABLE[rank],
        "OMP_NUM_THREADS": str(threads),
        "TESSERA_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    apart = ["unshare", "--net"] if rank else []
    cores = sorted(os.sched_getaffinity(0))
    process = subprocess.Popen(
        [*apart, sys.executable, "-c", _WHEN_TOLD, sys.executable, *script],
        env=variables,
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=None if rank == 0 else subprocess.DEVNULL,
    )
    os.sched_setaffinity(process.pid, cores[rank * len(cores) // 2 : (rank + 1) * len(cores) // 2] or cores)
    return process


def _join(pid: int, rate: str) -> None:
    """Lays the cable between this namespace and that of a process."""
    _wait_until_apart(pid)
    _run("ip", "link", "add", "name", CABLE[0], "type", "veth", "peer", "name", CABLE[1], "netns", str(pid))
    for rank, inside in enumerate(([], ["nsenter", f"--net=/proc/{pid}/ns/net"])):
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "addr", "add", f"{ADDRESSES[rank]}/24", "dev", CABLE[rank])
        _run(*inside, "ip", "link", "set", CABLE[rank], "up")
        _run(*inside, "tc", "qdisc", "add", "dev", CABLE[rank], "root", "tbf", "rate", rate, *SHAPE.split())


def _wait_until_apart(pid: int) -> None:
    own = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/ns/net").readlink() == own and time.monotonic() < deadline:
        time.sleep(0.01)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def main(arguments: Sequence[str]) -> int:
    """Gives the first exit code that is not 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.shaped_link", description=__doc__)
    parser.add_argument("--rate", default="2gbit", help="what the link carries, as tc takes it")
    parser.add_argument("--threads", type=int, default=1, help="threads of each rank")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="what each rank runs, with its arguments")
    options = parser.parse_args(arguments)
    ranks = [_rank(rank, options.script, options.threads) for rank in range(2)]
    try:
        _join(ranks[1].pid, options.rate)
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.close()
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return next((abs(code) for code in codes if code), 0)


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        sys.exit(main(sys.argv[2:]))
    sys.exit(subprocess.run(command(sys.argv[1:]), check=False).returncode)
