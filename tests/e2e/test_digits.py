"""The example classifies real digits, all of them as torch does."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    """The example. It imports scikit-learn, which takes a second that those who only collect tests save."""
    from examples import digits

    return digits


def test_predictions_equal_torchs_and_are_mostly_right(digits: ModuleType) -> None:
    lines: list[str] = []
    report = digits.main(lines.append)  # asserts equality on every image
    assert report.images == 1797
    assert report.accuracy > 0.95
    assert "all 1797 predictions equal to torch's" in lines[0]


def test_other_numbers_of_images_are_right_and_compile_next_to_nothing(digits: ModuleType) -> None:
    images, classes = digits.load()
    network = digits.train(images[:200], classes[:200])
    weights = digits.parameters(network)
    counts = (1, 2, 10, *range(100, 1700, 200))
    for count in counts:
        classified = digits.classify(images[:count], *weights).torch()
        assert classified.tolist() == network(images[:count]).argmax(-1).tolist()
    kernels = Counter(compilation.kernel for compilation in digits.classify.compilations())
    assert len(kernels) == 4  # three layers, and softmax with argmax
    assert max(kernels.values()) < len(counts) / 2
