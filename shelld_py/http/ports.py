"""On which TCP ports the processes of the shells listen: what a person may want to open in a browser."""

import asyncio
from typing import Final

from shelld_py.http.endpoint import Call, Endpoint, Tag, ok
from shelld_py.http.requests import Query
from shelld_py.linux.ports import listening_ports
from shelld_py.linux.processes import command_line
from shelld_py.models import OpenPort
from shelld_py.shells.shell import Shell


async def _ports(call: Call[Query, None]) -> list[OpenPort]:
    shells = [(shell, shell.pid) for shell in call.computer.shells.all if shell.pid]
    return await asyncio.to_thread(_open_ports, shells)


def _open_ports(shells: list[tuple[Shell, int]]) -> list[OpenPort]:
    found = [
        OpenPort(
            port=port,
            address=address,
            pid=pid,
            command=command_line(pid),
            session_id=shell.session_id,
            run_id=shell.run_of(pid),
        )
        for shell, root in shells
        for port, address, pid in listening_ports(root)
    ]
    return sorted(found, key=lambda each: (each.port, each.address))


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/ports",
        name="list_ports",
        tag=Tag.DAEMON,
        handler=_ports,
        looks=True,
        summary="The TCP ports that processes of the shells listen on",
        description="As the kernel shows them at this moment, by port and address.",
        query=Query,
        answers=ok("Where there is a server, and whose it is.", list[OpenPort]),
    ),
)
