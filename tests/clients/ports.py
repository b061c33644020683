"""Ports for programs that must be told theirs: they cannot take any free one and say which."""

import contextlib
import random
import socket
from pathlib import Path

LOWEST = 10000


def free_ports(count):
    """Different ones, below those that the kernel gives to connections: of these, one may be taken before its program starts. Even
    by a connection to the program itself, which the kernel then joins to its own other end."""
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = []
    with contextlib.ExitStack() as held:
        for port in random.sample(range(LOWEST, highest), highest - LOWEST):
            if len(found) == count:
                break
            taken = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", port))
                found.append(port)
    assert len(found) == count, f"of {count} ports {found} are free"
    return found
