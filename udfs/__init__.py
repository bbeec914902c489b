"""What runs inside a party's DuckDB; every function takes a connection."""
