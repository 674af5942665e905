"""The pictures of the gallery: `python -m tools.site.pictures [NAME ...]` runs examples and draws what came out into
docs/images/gallery.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.figure import Figure

from examples import digits, gpt2_block, llama_block, resnet50, train_gpt
from tessera import analyze, profile
from tools.site.gallery import PICTURES

SHOWN: Final = 24
"""Digits that are drawn."""
CALLS: Final = 5
"""Calls that are profiled."""


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


def roofline_of(main: Callable[[], object]) -> Callable[[Path], None]:
    """Draws the kernels of a program against what this machine can do."""

    def drawn(path: Path) -> None:
        main()  # compiles
        with tempfile.TemporaryDirectory() as place:
            trace = Path(place) / "trace.parquet"
            with profile.session(exporters=[profile.parquet(trace)]):
                for _ in range(CALLS):
                    main()
            analyze.roofline(trace).plot(path)

    return drawn


def draw_losses(path: Path) -> None:
    """The losses of the training, beside those of eager torch."""
    train_gpt.plot(train_gpt.train(), path)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


DRAWINGS: Final[Mapping[str, Callable[[Path], None]]] = {
    "digits": draw_digits,
    "gpt2_block": roofline_of(gpt2_block.main),
    "llama_block": roofline_of(llama_block.main),
    "resnet50": roofline_of(resnet50.main),
    "train_gpt": draw_losses,
}
"""What is drawn of each program."""


def main(names: list[str]) -> None:
    """Draws the pictures that are named, all by default."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in names or DRAWINGS:
        DRAWINGS[name](PICTURES / f"{name}.png")
        print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
