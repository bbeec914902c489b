"""Messages to one party by hand, with what a coordinator would pass on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.messages import Message
from sqlfl.messages.wire import encoded, received
from sqlfl.party.server import Server

_DRAWN: WeakKeyDictionary[Server, dict[str, np.ndarray]] = WeakKeyDictionary()


def brought(client: Server, message: Message) -> bytes:
    """The bytes of its reply. Where a message is to tell the nonces of a run and tells none, it
    tells the one that this party has drawn for it."""
    drawn = _DRAWN.setdefault(client, defaultdict(lambda: np.zeros(ms.NONCE_BYTES, np.uint8)))
    if isinstance(message, (ms.SendKeys, ms.Activate)) and not len(message.nonces):
        message = replace(message, nonces=drawn[message.run][None])
    found = client.handle(pa.py_buffer(encoded(message))).to_pybytes()
    reply = received(found)
    if isinstance(reply, ms.Prepared):
        drawn[reply.run] = reply.nonce
    return found


def ask(client: Server, message: Message) -> Message:
    return received(brought(client, message))
