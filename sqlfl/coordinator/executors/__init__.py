"""Where the joined rows of a problem are computed on: in partitions, by threads or workers."""
