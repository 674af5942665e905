"""Which kernel a schedule speaks of where none is named."""

from __future__ import annotations

from tests import forked

_WITHOUT_KERNELS = """
from tessera import op, schedule
from tessera.errors import NoSubjectError

assert op.matmul
try:
    schedule.search_space(tile=[(64, 64, 64)])
except NoSubjectError as error:
    print(error.code)
"""


def test_kernels_of_tessera_are_no_subject() -> None:
    done = forked.run(_WITHOUT_KERNELS)
    assert done.stdout.strip() == "E_NO_SUBJECT"
