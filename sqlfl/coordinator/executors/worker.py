"""A worker process: `python -m sqlfl.coordinator.executors.worker`.

It reads requests from its input and writes replies to its output, until the input ends, as it does
when the process that began it is gone.
"""

from __future__ import annotations

import os
import sys

from sqlfl.coordinator.executors.frames import WorkerFrame
from sqlfl.coordinator.executors.service import WorkerService


def main() -> None:
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed is no reply
    service = WorkerService()
    while True:
        try:
            request = WorkerFrame.read(requests)
        except EOFError:
            return
        service.answer(request).write(replies)


if __name__ == "__main__":
    main()
