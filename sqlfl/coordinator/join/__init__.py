"""Join of hashed keys, and the mapping of joined rows."""
