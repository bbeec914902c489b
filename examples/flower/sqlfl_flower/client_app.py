"""A site's part: it looks whether the party is there, and hears how the statement has ended."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
log = logging.getLogger("flwr")


@app.query("ready")
def ready(message: Message, context: Context) -> Message:
    pid = running(Path(str(context.node_config["pid-file"])))
    return Message(RecordDict({"party": MetricRecord({"pid": pid})}), reply_to=message)


@app.query("done")
def done(message: Message, context: Context) -> Message:
    log.info("the statement has ended: %s", message.content["end"]["how"])
    return Message(RecordDict({}), reply_to=message)


def running(file: Path) -> int:
    """The process of the resident party. Raises OSError where it is not running."""
    pid = int(file.read_text())
    os.kill(pid, 0)  # nothing is sent: it fails where there is no such process
    return pid
