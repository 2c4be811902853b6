"""``[tracing]`` of both daemons."""

from typing import Annotated

from pydantic import Field

from protocol.errors import Misconfigured
from runtime.settings.load import Section
from runtime.tracing.spans import OFF, Tracer


class TracingSettings(Section):
    """Traces of updates by OpenTelemetry (docs/tracing.md); off without an endpoint."""

    endpoint: Annotated[str, Field(pattern=r"^(https?://[^/\s@?#]{1,253}(/[^\s@?#]{0,200})?)?$")] = ""
    """Of the collector, OTLP over HTTP: ``http://127.0.0.1:4318``. Empty: off."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    """Of one request to the collector."""


def tracer_of(settings: TracingSettings, service: str, instance: str) -> Tracer:
    """The tracer of these settings; without an endpoint :data:`OFF`, and nothing is imported.

    Raises:
        Misconfigured: the extra ``otel`` is not installed.
    """
    if not settings.endpoint:
        return OFF
    try:
        from runtime.tracing.export import OtlpTracer  # noqa: PLC0415 - only where it is configured
    except ImportError as error:
        words = "tracing.endpoint is set, and the extra otel is missing: pip install 'lichen[otel]'"
        raise Misconfigured(f"{words} ({error})") from None
    _, _, place = settings.endpoint.partition("://")
    endpoint = settings.endpoint if "/" in place.rstrip("/") else f"{settings.endpoint.rstrip('/')}/v1/traces"
    return OtlpTracer(endpoint, service, instance, settings.timeout_s)
