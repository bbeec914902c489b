"""Base modules that import nothing else of sqlfl: errors, types of arrays, JSON, results and
threads.
"""
