"""Worker process: `python -m sqlfl.coordinator.executors.worker`.

It reads requests from its input and writes replies to its output until the input ends. The input
also ends when the process that started it is gone.
"""

from __future__ import annotations

import os
import sys

from sqlfl.coordinator.executors.frames import WorkerFrame
from sqlfl.coordinator.executors.service import WorkerService


def main() -> None:
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # printed output must not become a reply
    service = WorkerService()
    while True:
        try:
            request = WorkerFrame.read(requests)
        except EOFError:
            return
        service.answer(request).write(replies)


if __name__ == "__main__":
    main()
