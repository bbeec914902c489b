"""A coordinator's counts as Prometheus reads them. Labels name parties, statements' kinds and how
they ended; no analyst, study, model or table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sqlfl.service.status import BOUNDS, ServiceStatus

OPEN_METRICS = "application/openmetrics-text"
_PARTY = ("party", "client")


def exposition(board: ServiceStatus, accept: str) -> tuple[str, bytes]:
    """Type and text: OpenMetrics where the header asks for it, else the older format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(board))
    # not the header itself: the library fails on versions that are no numbers
    encode, kind = choose_encoder(OPEN_METRICS if OPEN_METRICS in accept else "")
    return kind, encode(registry)


class _Collector(Collector):
    """Reads the board as it is just now: there is no second count to go astray."""

    def __init__(self, board: ServiceStatus) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        yield from _parties(self._board)
        yield from _statements(self._board)
        began = self._board.began.timestamp()
        yield GaugeMetricFamily(
            "sqlfl_start_time_seconds", "When the coordinator began, in Unix time.", value=began
        )


def _parties(board: ServiceStatus) -> Iterator[Metric]:
    connected = GaugeMetricFamily(
        "sqlfl_party_connected", "Whether the party's client has a stream.", labels=_PARTY
    )
    again = CounterMetricFamily(
        "sqlfl_party_reconnections", "Streams after the first one.", labels=_PARTY
    )
    requests = CounterMetricFamily(
        "sqlfl_party_requests", "Requests to the party's client.", labels=_PARTY
    )
    sent = CounterMetricFamily(
        "sqlfl_party_bytes",
        "Bytes of messages: down to the party's client, up from it.",
        labels=(*_PARTY, "direction"),
    )
    for line in board.lines:
        labels = line.party, str(line.first)
        connected.add_metric(labels, float(not line.away))
        again.add_metric(labels, line.reconnections)
        requests.add_metric(labels, line.requests)
        sent.add_metric((*labels, "down"), line.bytes_down)
        sent.add_metric((*labels, "up"), line.bytes_up)
    yield from (connected, again, requests, sent)


def _statements(board: ServiceStatus) -> Iterator[Metric]:
    totals = board.totals()
    ended = CounterMetricFamily(
        "sqlfl_statements",
        "Statements that are over, by what they do and how they ended.",
        labels=("verb", "outcome"),
    )
    for of, count in sorted(totals.ended.items()):
        ended.add_metric(of, count)
    yield ended
    yield GaugeMetricFamily(
        "sqlfl_statements_running", "Statements that are running.", value=totals.running
    )
    yield CounterMetricFamily(
        "sqlfl_border_bytes",
        "Bytes that have crossed parties' borders, in statements that are over.",
        value=totals.bytes,
    )
    names = [*(str(bound) for bound in BOUNDS[:-1]), "+Inf"]
    yield HistogramMetricFamily(
        "sqlfl_statement_seconds",
        "How long statements took that are over.",
        buckets=list(zip(names, accumulate(map(float, totals.times)), strict=True)),
        sum_value=totals.seconds,
    )
