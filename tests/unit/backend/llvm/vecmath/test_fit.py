"""The coefficients in the package are what the fitting tool gives, and are as good as their comments say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from mpmath import mp, mpf

from tessera.backend.llvm.vecmath import coefficients

TOOL = Path(__file__).parents[5] / "tools/fit_math.py"


@pytest.fixture(scope="module")
def fit_math() -> ModuleType:
    specification = importlib.util.spec_from_file_location("fit_math", TOOL)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["fit_math"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["TANH_F32", "EXP_F32"])
def test_a_new_fit_gives_the_numbers_checked_in(fit_math: ModuleType, name: str) -> None:
    with mp.workdps(fit_math.DIGITS):
        (target,) = [target for target in fit_math.targets() if target.name == name]
        fit = fit_math.fit_rounded(target)
    assert tuple(map(float, fit.coefficients)) == getattr(coefficients, name)


def test_every_table_reaches_the_error_in_its_comment(fit_math: ModuleType) -> None:
    text = (fit_math.OUTPUT).read_text()
    with mp.workdps(fit_math.DIGITS):
        for target in fit_math.targets():
            table = tuple(mpf(value) for value in getattr(coefficients, target.name))
            error = max(abs(e) for e in fit_math.weighted_errors(table, fit_math.samples_of(target)))
            assert f": 2^{float(mp.log(error, 2)):.2f}\n{target.name} = (" in text


def test_remez_levels_the_error_of_a_known_case(fit_math: ModuleType) -> None:
    # The best line to x^2 on [0, 1] is x - 1/8, with an error of 1/8 at 0, 1/2 and 1.
    with mp.workdps(fit_math.DIGITS):
        target = fit_math.Target("square", "", lambda x: x**2, lambda x: mpf(1), mpf(0), mpf(1), 1)
        fit = fit_math.remez(target, fit_math.samples_of(target))
    assert float(fit.error) == pytest.approx(0.125, rel=1e-6)
    assert [float(value) for value in fit.coefficients] == pytest.approx([-0.125, 1.0], rel=1e-6)
