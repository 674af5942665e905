"""What goes wrong when a page asks for something, and how it is told."""

from __future__ import annotations

from typing import Any

from tessera.errors import ArgumentError, TesseraError


class NotFoundError(ArgumentError):
    """A page, question or run that there is not."""


def error_json(error: Exception) -> dict[str, Any]:
    """An error as pages show it: what the command line prints."""
    hints = list(error.hints) if isinstance(error, TesseraError) else []
    message = error.message if isinstance(error, TesseraError) else str(error)
    return {"error": {"code": getattr(error, "code", "E_ARGUMENT"), "message": message, "hints": hints}}
