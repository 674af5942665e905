"""What the gallery shows: `python -m tools.site.recording [NAME ...]` runs examples as their docstrings say, and keeps
what they print, and a picture, in docs/gallery.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.figure import Figure

from bench import machine
from examples import digits, gpt2_block, llama_block, resnet50
from tessera import graph
from tools.site.gallery import KEPT, ROOT, command, programs

SHOWN: Final = 24
"""Digits that are drawn."""
KILLED: Final = "kill_one"
"""The program that ends as one does of which a rank was killed."""


def run(path: Path) -> str:
    """What a program prints, below the machine and the command. A picture that it writes becomes the gallery's.

    Raises RuntimeError for a program that fails.
    """
    words = shlex.split(command(path))
    words[0] = str(Path(sys.executable).with_name(words[0]))
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            words, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode and path.stem != KILLED:
            raise RuntimeError(f"{path.name}: {done.stdout.strip()}")
        if (drawn := Path(place) / f"{path.stem}.png").exists():
            shutil.copy(drawn, KEPT)
    where = f"# {machine.cpu_name()}, {machine.cores()} cores, {datetime.now(UTC):%Y-%m-%d}"
    # Warnings of libraries begin with their place on this machine.
    lines = [line for line in done.stdout.splitlines() if "site-packages" not in line]
    printed = "\n".join(lines).replace(f"{ROOT}/", "").rstrip()
    return f"{where}\n$ {command(path)}\n{printed}\n"


def draw_digits(path: Path) -> None:
    """Images that the network was not trained on, with the classes that the kernel gave them."""
    images, classes = digits.load()
    trained = int(digits.TRAINED_SHARE * len(images))
    network = digits.train(images[:trained], classes[:trained])
    found = digits.classify(images[trained:], *digits.parameters(network)).tolist()
    figure, places = pyplot.subplots(3, SHOWN // 3, figsize=(8, 3.6))
    for place, image, given, right in zip(places.flat, images[trained:], found, classes[trained:], strict=False):
        place.imshow(image.reshape(8, 8), cmap="gray_r")
        place.set_title(str(given), fontsize=10, color="black" if given == int(right) else "crimson")
        place.axis("off")
    _save(figure, path)


def kernels_of(main: Callable[[], object]) -> Callable[[Path], None]:
    """Draws the kernels that a program becomes, as `graph.explain` counts them: nothing of it is measured."""

    def drawn(path: Path) -> None:
        with redirect_stdout(StringIO()):
            kernels = graph.explain(main).kernels
        labels = list(dict.fromkeys("+".join(kernel.operators) for kernel in kernels))[::-1]
        figure, places = pyplot.subplots(1, 2, sharey=True, figsize=(9, 1.2 + 0.34 * len(labels)))
        for place, quantity, unit in zip(places, ("flops", "bytes"), ("MFLOP", "MB to and from memory"), strict=True):
            sums = dict.fromkeys(labels, 0.0)
            for kernel in kernels:
                sums["+".join(kernel.operators)] += getattr(kernel, quantity) / 1e6
            place.barh(labels, list(sums.values()), color="#3b5b7a")
            place.set_xlabel(unit)
        figure.suptitle(f"{len(kernels)} kernels, by the operators that each computes", fontsize=11)
        _save(figure, path)

    return drawn


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


DRAWINGS: Final[Mapping[str, Callable[[Path], None]]] = {
    "digits": draw_digits,
    "gpt2_block": kernels_of(gpt2_block.main),
    "llama_block": kernels_of(llama_block.main),
    "resnet50": kernels_of(resnet50.main),
}
"""What is drawn of programs that draw nothing themselves."""


def main(names: list[str]) -> int:
    """Records the programs that are named, all by default; 1 where one fails."""
    KEPT.mkdir(exist_ok=True)
    failed = []
    for path in programs():
        if names and path.stem not in names:
            continue
        try:
            (KEPT / f"{path.stem}.txt").write_text(run(path))
        except RuntimeError as error:
            failed.append(str(error))
            continue
        if path.stem in DRAWINGS:
            DRAWINGS[path.stem](KEPT / f"{path.stem}.png")
        print(path.stem)
    print(*failed, sep="\n", end="", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
