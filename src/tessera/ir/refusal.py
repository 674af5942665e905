"""A pass's objection to one operation, before it is known where that stands in a text."""

from __future__ import annotations

from xdsl.ir import Operation

from tessera.errors import TesseraError


class RefusalError(Exception):
    """What a pass objects to: an operation, or one of its attributes, and the error that users get of it.

    `PassPipeline.run` catches it and raises the error, with the line of the text where there is one.
    """

    def __init__(self, error: TesseraError, operation: Operation, attribute: str = "") -> None:
        super().__init__(str(error))
        self.error, self.operation, self.attribute = error, operation, attribute
