"""Profiles for OpenTelemetry collectors: spans and metrics over OTLP, by HTTP or gRPC."""
