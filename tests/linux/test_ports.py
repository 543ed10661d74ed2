"""Which sockets listen, and whose they are, as two ways of asking the kernel tell it."""

import asyncio
import os
import socket
from contextlib import ExitStack

import pytest

from shelld_py.errors import PortNotOpen
from shelld_py.linux import ports
from shelld_py.linux.ports import ListeningPort, listening_ports, loopback_sockets
from shelld_py.proxy.fields import Target
from shelld_py.proxy.passing import connect


def test_both_ways_of_asking_find_the_same() -> None:
    """Sockets of either family, more of them than fit into one answer of the kernel."""
    with ExitStack() as stack:
        addresses = ["127.0.0.1", "127.0.0.2", "::1", *["127.0.0.1"] * 300]
        own = set()
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = stack.enter_context(socket.create_server((address, 0), family=family))
            own.add((listener.getsockname()[1], address, os.fstat(listener.fileno()).st_ino))
        every = stack.enter_context(socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        own.add((every.getsockname()[1], "::", os.fstat(every.fileno()).st_ino))
        assert own <= set(ports._diagnosed())
        assert own <= set(ports._listed(os.getpid()))
        told = {ListeningPort(port, address, os.getpid()) for port, address, _ in own}
        assert told <= set(listening_ports(os.getpid()))


def test_a_connection_is_not_kept_when_the_port_has_changed_hands() -> None:
    """Another socket takes the port between the look and the connection, of a process that would be let through."""
    with ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = first.getsockname()[1]
        looks = 0

        def roots() -> list[int]:
            nonlocal looks
            looks += 1
            if looks == 2:
                first.close()
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return [os.getpid()]

        with pytest.raises(PortNotOpen):
            asyncio.run(connect(Target(port, b"/"), roots))
        assert looks == 2
        assert loopback_sockets(port, [os.getpid()]).keys() == {"127.0.0.1"}


def test_an_address_that_is_not_loopback_is_not_reached() -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        assert loopback_sockets(listener.getsockname()[1], [os.getpid()]) == {}
