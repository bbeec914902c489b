"""The server's part: sites are asked whether they are ready, and the coordinator does the rest."""

from __future__ import annotations

import logging
import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

import sqlfl

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    told = context.run_config
    nodes = connected(grid, int(told["sites"]))
    asked(grid, nodes, "ready", {})
    how = "failed"
    try:
        with sqlfl.connect(
            str(told["coordinator"]), config=str(told["config"]), study=str(told["study"])
        ) as fed:
            log.info("%s", fed.sql(str(told["statement"])))
        how = "done"
    finally:
        asked(grid, nodes, "done", {"how": how})


def connected(grid: Grid, sites: int, seconds: float = 60.0) -> list[int]:
    """The nodes, once there are so many."""
    due = time.monotonic() + seconds
    while len(nodes := list(grid.get_node_ids())) < sites:
        if time.monotonic() > due:
            raise RuntimeError(f"{len(nodes)} of {sites} sites are connected to Flower")
        time.sleep(1.0)
    return nodes


def asked(grid: Grid, nodes: list[int], what: str, given: dict[str, str]) -> None:
    """Raises RuntimeError where a site does not answer, or fails."""
    content = RecordDict({"end": ConfigRecord(given)})
    messages = [Message(content, dst_node_id=node, message_type=f"query.{what}") for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=120.0))
    failed = [reply.metadata.src_node_id for reply in replies if reply.has_error()]
    silent = len(nodes) - len(replies)
    if failed or silent:
        raise RuntimeError(f"{what}: {len(failed)} sites have failed, {silent} were silent")
