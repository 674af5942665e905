"""`examples/generate.py`: Hugging Face's generate through the backend writes the tokens of eager torch."""

from __future__ import annotations

import importlib.util

import pytest

from examples import generate

MISSING = importlib.util.find_spec("transformers") is None


@pytest.mark.skipif(MISSING, reason="transformers is missing")
def test_tokens_are_those_of_eager_torch() -> None:
    lines: list[str] = []
    generate.main(lines.append)
    assert len(lines) >= 2 * len(generate.CACHES)
    assert all("the tokens of eager" in line for line in lines)


@pytest.mark.skipif(not MISSING, reason="transformers is there")
def test_without_the_package_it_says_what_to_install() -> None:
    with pytest.raises(SystemExit, match="pip install transformers"):
        generate.main()
