"""Row ids, keyed hashes and the snapshot of a slot."""
