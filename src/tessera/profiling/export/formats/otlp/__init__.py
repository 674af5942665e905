"""Profiles for OpenTelemetry collectors: spans and metrics over OTLP, by HTTP or gRPC."""

from __future__ import annotations

from typing import Final

from tessera.profiling.export.contract import Format
from tessera.profiling.export.formats.otlp.exporter import OtlpExporter

FORMAT: Final = Format(OtlpExporter)
