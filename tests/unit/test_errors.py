"""Errors: stable codes, the builtin that fits, the user's line, hints."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tessera import dtypes, errors, numerics, op, settings
from tessera.errors import TesseraError

CODES = {
    "E_ARGUMENT": ValueError,
    "E_ARTEFACT": RuntimeError,
    "E_ATTACH": RuntimeError,
    "E_BACKEND_FALLBACK": NotImplementedError,
    "E_CACHE_FORMAT": ValueError,
    "E_CACHE_IO": OSError,
    "E_CACHE_UNTRUSTED": PermissionError,
    "E_CHECKPOINT": ValueError,
    "E_COLLECTIVE_MISMATCH": RuntimeError,
    "E_COLLECTIVE_ORDER": RuntimeError,
    "E_COLLECTIVE_STALLED": RuntimeError,
    "E_COMPILATION_LIMIT": RuntimeError,
    "E_COMPILE": RuntimeError,
    "E_DEVICE": ValueError,
    "E_DEVICE_FAULT": RuntimeError,
    "E_DRIVER": RuntimeError,
    "E_DTYPE": TypeError,
    "E_FORKED": RuntimeError,
    "E_FROZEN_RANDOM": RuntimeError,
    "E_GRAD_DETACHED": RuntimeError,
    "E_INDEX": IndexError,
    "E_INPUT_MUTATED": RuntimeError,
    "E_IN_PLACE": TypeError,
    "E_IR": ValueError,
    "E_JOB": RuntimeError,
    "E_LAYOUT_IMPLICIT": ValueError,
    "E_LIBRARY": RuntimeError,
    "E_MEMORY_LIMIT": MemoryError,
    "E_MESH": ValueError,
    "E_MESH_ABSTRACT": ValueError,
    "E_MISSING_ARGUMENT": TypeError,
    "E_NOT_IN_MESH": ValueError,
    "E_NO_SUBJECT": RuntimeError,
    "E_PIPELINE": ValueError,
    "E_PROFILE": RuntimeError,
    "E_RANK_LOST": RuntimeError,
    "E_SCHEDULE_IGNORED": RuntimeError,
    "E_SCHEDULE_ILLEGAL": ValueError,
    "E_SHAPE_MISMATCH": ValueError,
    "E_STREAM": RuntimeError,
    "E_STREAM_RACE": RuntimeError,
    "E_TORCH_FUNCTION": TypeError,
    "E_TUNE_FAILED": RuntimeError,
    "E_TUNE_SPACE_EMPTY": ValueError,
    "E_UNSUPPORTED_TARGET": RuntimeError,
    "E_VALUE_CONTROL_FLOW": TypeError,
    "E_ZERO_DIVISION": ZeroDivisionError,
}


def line_of(frame_offset: int = 0) -> str:
    """ "file:line" of the caller, `frame_offset` lines further down."""
    return f"{__file__}:{sys._getframe(1).f_lineno + frame_offset}"


def declared() -> dict[str, type[TesseraError]]:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TesseraError)]
    subclasses = [one for one in classes if one is not TesseraError]
    assert len({one.code for one in subclasses}) == len(subclasses)
    return {one.code: one for one in subclasses}


def test_the_codes_are_the_documented_ones() -> None:
    assert declared().keys() == CODES.keys()


@pytest.mark.parametrize(("code", "builtin"), CODES.items())
def test_an_error_is_caught_as_itself_and_as_the_builtin_that_fits(code: str, builtin: type[Exception]) -> None:
    error = declared()[code]("what went wrong", hints=["do this"])
    assert isinstance(error, TesseraError)
    assert isinstance(error, builtin)
    assert str(error).startswith(f"{code}: what went wrong\n")


def test_the_text_has_message_place_and_hints_in_order() -> None:
    error = errors.ShapeMismatchError("(3, 4) @ (5, 6)", hints=["one", "two"], where="train.py:12")
    assert str(error) == "E_SHAPE_MISMATCH: (3, 4) @ (5, 6)\nat train.py:12\nhint: one\nhint: two"


def test_where_is_the_line_that_made_the_error() -> None:
    error, here = errors.DTypeError("no"), line_of()
    assert error.where == here


def test_where_is_the_users_call_and_not_a_line_of_tessera() -> None:
    here = line_of(2)
    with pytest.raises(errors.DTypeError) as caught:
        dtypes.dtype_of("fp7")
    assert caught.value.where == here


def test_where_is_no_line_of_generated_code() -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        numerics.policy("bogus")  # type: ignore[arg-type] # refused by the generated constructor of a dataclass
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)
    x = torch.zeros(1 << 20)
    (op.tensor(x) + 1.0).eval()
    with settings.override(memory_limit_bytes=1 << 10), pytest.raises(errors.MemoryLimitError) as refused:
        [(op.tensor(x) + 1.0).eval() for _ in range(64)]
    assert refused.value.where is not None
    assert refused.value.where.startswith(__file__)


class Refusing(torch.Tensor):
    """Stands for a tensor that refuses torch's functions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return dtypes.dtype_of("not a dtype")


def test_where_passes_over_torch() -> None:
    tensor = torch.zeros(2).as_subclass(Refusing)
    with pytest.raises(errors.DTypeError) as caught:
        # softmax is a Python function of torch, which calls back into Tessera.
        torch.nn.functional.softmax(tensor, 0)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


@pytest.mark.parametrize("code", CODES)
def test_an_error_survives_the_way_from_another_process(code: str) -> None:
    error = declared()[code]("what went wrong", hints=["do this"], where="worker.py:3")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.message, copy.hints, copy.where) == ("what went wrong", ("do this",), "worker.py:3")
    assert str(copy) == str(error)


def test_importing_errors_does_not_import_torch(tmp_path: Path) -> None:
    # As a file of its own: `import tessera` may load torch, this module may not.
    program = f"import runpy, sys; runpy.run_path({errors.__file__!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "False"
