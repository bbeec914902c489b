"""The physical operators: learning over the join, learning over unions, and the client's part."""
