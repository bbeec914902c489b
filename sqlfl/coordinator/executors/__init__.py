"""Executors: they compute on the joined rows of a problem in partitions, by threads or workers."""
