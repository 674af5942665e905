"""A matrix of a million by a million on 72 devices that are not there, and a plan for a model on as many.

The mesh is abstract: layouts, programs and bytes are known, and nothing is allocated. All times of the plan are
predicted.

Run it: ``python examples/mesh_72.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tessera import dist
from tessera.errors import AbstractMeshError

DEVICES = 72


def main(write: Callable[[str], object] = print) -> dist.MeshPlan:
    """Says how the matrix lies, what evaluating it would need, and how GPT-3 would be divided; gives that plan."""
    begun = time.perf_counter()
    mesh = dist.Mesh(axes=["tp", "pp", "dp"], devices=range(DEVICES))
    W = dist.tensor(
        shape=(1_000_000, 1_000_000),
        layout=dist.ShardSpec(partition=("row", "col"), mesh_axes=("tp", "pp")),
        mesh=mesh,
    )
    write(f"{mesh!r}\n{W!r}")
    try:
        (W + W).eval()
    except AbstractMeshError as error:
        write(str(error))
    gpt = dist.Transformer(
        layers=96, hidden=12_288, heads=96, feedforward=49_152, vocabulary=51_200, sequence=2_048, name="GPT-3 175B"
    )
    plan = dist.plan(gpt, batch=1536, topology="gb200-nvl72", devices=DEVICES)
    write(str(plan))
    write(f"all of it took {time.perf_counter() - begun:.2f} s")
    return plan


if __name__ == "__main__":
    main()
