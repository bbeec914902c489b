"""Gateway: an analyst's statements for clients that speak Arrow Flight SQL (ADBC, JDBC, ODBC)."""
