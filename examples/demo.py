"""Train one model over six databases of four organisations, and compare it with a central one."""

from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

import duckdb

import sqlfl

DATA = Path(__file__).parent / "data"
TABLES = {
    "airline.flights": f"SELECT row_number() OVER () AS id, * FROM '{DATA}/flights.parquet'",
    "meteo.weather": f"FROM '{DATA}/weather.parquet'",
    "registry.planes": f"FROM '{DATA}/planes.parquet'",
    "atlas.airports": f"FROM '{DATA}/airports.parquet'",
}
QUERY = """
  SELECT f.distance, f.carrier, f.hour AS dep_hour, w.wind_speed, w.visib, w.precip,
         p.seats, a.lat, a.lon, a.alt, f.arr_delay > 15 AS late
  FROM airline.flights f
  JOIN meteo.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
  JOIN registry.planes p USING (tailnum)
  JOIN atlas.airports a ON f.dest = a.faa
  WHERE f.dep_time IS NOT NULL"""
TRAIN = f"TRAIN MODEL delay USING logistic_regression TARGET late FROM ({QUERY}\n)"


def main(fed: sqlfl.Federation, folder: Path) -> None:
    from central import train_centrally  # scikit-learn, which examples/distributed does without

    for name, rows in TABLES.items():
        party, table = name.split(".")
        parts = [f"FROM ({rows}) WHERE origin = '{o}'" for o in ("EWR", "JFK", "LGA")]
        parts = parts if party == "airline" else [rows]  # three databases, or one
        clients = [duckdb.connect(folder / f"{party}_{i}.duckdb") for i in range(len(parts))]
        for client, part in zip(clients, parts, strict=True):
            client.execute(f"CREATE TABLE {table} AS {part}")
        fed.attach(party, clients)

    print(TRAIN)
    title("The plan's SQL (print(plan) shows what leaves each party, plan.details everything)")
    plan = fed.explain(TRAIN)
    for client in plan.clients:
        print(f"{client!s:<11}", shorten(" ".join(plan.fragments_sql(client)), 105))
    print("coordinator", shorten(plan.mapping_sql, 105))

    title("Training")
    print(fed.sql(TRAIN), end="\n\n")
    history = fed.model("delay").history
    print(duckdb.sql("SELECT epoch, rounds, train_loss, bytes_up, bytes_down FROM history"))

    title("The model, beside the same trained in one database that has all the tables")
    ours = fed.sql(f"EVALUATE MODEL delay FROM ({QUERY})").arrow().to_pylist()[0]
    scored = fed.sql(f"PREDICT MODEL delay ID (airline.flights.id) FROM ({QUERY})").arrow()
    theirs, central = train_centrally(TABLES, QUERY.replace("SELECT", "SELECT f.id,"))
    for name, value in theirs.items():
        print(f"{name:<9} {ours[name]:.7f} federated, {value:.7f} central")
    both = "FROM scored JOIN central USING (id)"
    print(duckdb.sql(f"SELECT count(*) AS rows, max(abs(probability_true - p)) AS apart {both}"))
    print(duckdb.sql("FROM scored ORDER BY 1 LIMIT 5"))

    title("Bytes that left each party, by kind of message, in all of the above")
    audit = fed.audit().arrow()
    up = "(FROM audit WHERE direction = 'up')"
    print(duckdb.sql(f"PIVOT {up} ON party USING sum(bytes) GROUP BY kind ORDER BY kind"))

    title("Refused: a feature that one party could only compute by seeing another's column")
    try:
        fed.explain(TRAIN.replace("f.distance,", "f.distance * w.visib AS risk,"))
    except sqlfl.PlanError as error:
        print(error)


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder, sqlfl.connect() as fed:
        main(fed, Path(folder))
