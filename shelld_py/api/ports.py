"""On which TCP ports the processes of the shells listen, and links that open one in a browser."""

import asyncio
from http import HTTPStatus
from typing import Annotated, Final

from msgspec import Meta

from shelld_py import errors
from shelld_py.errors import InvalidRequest, NotFound
from shelld_py.http.endpoint import JSON, Body, Call, Endpoint, Success, Tag, ok
from shelld_py.http.requests import Query, lifetime_field
from shelld_py.linux.ports import listening_ports
from shelld_py.linux.processes import command_line
from shelld_py.models import OpenPort, PortLink, utc_timestamp
from shelld_py.request_data import Duration, Request
from shelld_py.shells.shell import Shell

_LARGEST_PORT: Final = 65535


class LinkRequest(Request, frozen=True, kw_only=True):
    """A link that opens a port in a browser: how long the browser is let in."""

    expires: Annotated[Duration, Meta(description="How long the link is good for, and what it admits to.")] = "1h"
    strip_prefix: Annotated[
        bool,
        Meta(description="Whether paths go on without `/ports/{port}`. Not for a program that has it for its base."),
    ] = True


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


async def _link(call: Call[None, LinkRequest]) -> PortLink:
    if call.services.proxied is None:
        raise NotFound("Ports are not passed on: server.proxy = true does that.")
    seconds = lifetime_field("expires", call.body.expires)
    text = call.request.path_params["port"]
    port = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST_PORT)) else 0
    if not 0 < port <= _LARGEST_PORT:
        raise InvalidRequest(f"A port is a number from 1 to {_LARGEST_PORT}.")
    url, ends = call.services.proxied.link(port, seconds, call.request.scope, strip_prefix=call.body.strip_prefix)
    return PortLink(url=url, expires_at=utc_timestamp(ends))


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
    Endpoint(
        method="POST",
        path="/ports/{port}/link",
        name="link_port",
        tag=Tag.DAEMON,
        handler=_link,
        summary="Make a link that opens a port in a browser",
        description="Where `server.proxy` is set. It works once, and sets a cookie that lets the browser reach this "
        "port alone. Programs need none: with the key, `/ports/{port}/{path}` passes any request, and WebSockets, on "
        "to what a process of the shells serves on 127.0.0.1 or [::1].",
        body=Body(model=LinkRequest, example={"expires": "1h"}),
        answers={HTTPStatus.CREATED: Success(meaning="The link.", content={JSON: PortLink})},
        errors=(errors.TooManyLinks,),
    ),
)
