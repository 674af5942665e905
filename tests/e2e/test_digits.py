"""The example classifies real digits, all of them as torch does."""

from __future__ import annotations

from examples import digits


def test_predictions_equal_torchs_and_are_mostly_right() -> None:
    lines: list[str] = []
    report = digits.main(lines.append)  # asserts equality on every image
    assert report.images == 1797
    assert report.accuracy > 0.95
    assert "all 1797 predictions equal to torch's" in lines[0]


def test_the_whole_inference_is_compiled_once() -> None:
    images, classes = digits.load()
    network = digits.train(images[:200], classes[:200])
    weights = digits.parameters(network)
    for count in (1, 10, 100):
        classified = digits.classify(images[:count], *weights).torch()
        assert classified.tolist() == network(images[:count]).argmax(-1).tolist()
    assert len(digits.classify.compilations()) <= 2  # one image is a row that broadcasts: another program
