"""Where a coordinator listens: `grpc+tls://host:8815`, or on this machine alone `grpc://...`."""

from __future__ import annotations

from urllib.parse import urlsplit

from sqlfl.base.errors import Error

HERE = ("127.0.0.1", "::1", "localhost")


def check_location(location: str, *, insecure: bool) -> None:
    """Raise Error where TLS is missing, but on this machine where that was asked for."""
    try:
        parts = urlsplit(location)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme not in ("grpc+tls", "grpc") or host is None or port is None:
        raise Error(f"{location!r} is no place to connect to", hint="grpc+tls://host:8815 is one")
    if scheme == "grpc+tls" and insecure:
        raise Error(f"{location} is with TLS, and --insecure without", hint="use grpc://")
    if scheme == "grpc" and not insecure:
        raise Error(
            f"{location} is without TLS",
            hint="use grpc+tls://; --insecure is for this machine alone",
        )
    if insecure and host not in HERE:
        raise Error(
            f"--insecure is for this machine alone, not for {host}",
            hint="grpc://127.0.0.1:8815, or keys by sqlfl keygen",
        )
