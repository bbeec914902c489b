"""TCP connections of a port of this process: their list, and their end.

Flight's server cannot end a stream whose peer says nothing: the thread that serves it waits for
ever. The process that has the connection can end it, whatever holds it. If a system does not list a
process's own files (neither /proc nor /dev/fd), no connections are found.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import unquote

Peer: TypeAlias = tuple[str, int]
"""Address and port of the other end."""
_PLACES = ("/proc/self/fd", "/dev/fd")
_MAPPED = "::ffff:"


def peer_of(text: str) -> Peer | None:
    """Return the peer that gRPC calls 'ipv4:127.0.0.1:40546' or 'ipv6:[::1]:40546'; None if it is
    neither.
    """
    kind, _, place = unquote(text).partition(":")
    host, _, port = place.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _host(host.strip("[]")), int(port)


def cut(port: int, which: Callable[[Peer], bool] = lambda _: True) -> int:
    """End this process's connections to the port that `which` accepts; return their number. Readers
    and writers there go on with an error.
    """
    count = 0
    for connection, peer in _connections(port):
        if which(peer):
            with suppress(OSError):  # the connection has ended by itself
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections(port: int) -> Iterator[tuple[socket.socket, Peer]]:
    place = next((place for place in _PLACES if os.path.isdir(place)), None)
    for name in os.listdir(place) if place is not None else ():
        with suppress(OSError):  # a file that was closed since, or another one's
            number = os.dup(int(name))  # of which nobody makes another one meanwhile
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                os.close(number)
                continue
            with socket.socket(fileno=number) as connection:
                if (
                    connection.family in (socket.AF_INET, socket.AF_INET6)
                    and _port(connection) == port
                ):
                    host, peer, *_ = connection.getpeername()
                    yield connection, (_host(host), peer)


def _port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def _host(text: str) -> str:
    host = text.partition("%")[0]  # without its zone
    return host.removeprefix(_MAPPED) if "." in host else host
