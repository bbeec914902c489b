"""`python -m sqlfl`, or `sqlfl`: the command line."""

from __future__ import annotations

from sqlfl.cli.main import main

if __name__ == "__main__":
    main()
