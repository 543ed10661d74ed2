"""The console: one page for a person who looks over an agent's shoulder, and the files that it is made of.

They are built by scripts/build-console from `console/`, and hold no secret: what the page asks of the API bears the key
that the person has entered. This file must not know what is in them.
"""

import asyncio
import hashlib
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

import shelld_py
from shelld_py.errors import NotFound
from shelld_py.http.endpoint import Call, Endpoint, Header, Success, Tag
from shelld_py.http.requests import Form, is_known

_BUILT: Final = Path(shelld_py.__file__).parent / "console"
_PAGE: Final = "index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ASSET: Final = re.compile(r"[a-z][a-z-]{0,30}\.(?:js|css|svg)")
_NOT_BUILT: Final = "The console is not built: scripts/build-console in shelld-py's checkout builds it."

HEADERS: Final = {
    # Scripts and styles come from files of ours alone. Pictures may also be `blob:`, as the picture of a screen needs
    # the key and so is fetched by the script. `require-trusted-types-for` takes from the script all ways to make
    # markup or code of a text: what a command has written can only ever be text.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Names stay the same from build to build, so a browser asks each time whether its copy is still good.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


def is_built() -> bool:
    """Whether there is a page to show."""
    return (_BUILT / _PAGE).exists()


async def _console(call: Call[None, None]) -> Response:
    """Give the page, or one of its files."""
    path = call.request.scope["path"]
    if not call.computer.settings.console.enabled:
        raise NotFound(f"There is no path {path}: console.enabled = true serves it.")
    asset = call.request.path_params.get("asset")
    name = asset or _PAGE
    if asset and not _ASSET.fullmatch(asset):
        raise NotFound(f"There is no path {path}. GET /console is the page.")
    compressed = "gzip" in call.request.headers.get("accept-encoding", "").lower()
    try:
        content = await asyncio.to_thread((_BUILT / f"{name}{'.gz' if compressed else ''}").read_bytes)
    except FileNotFoundError:
        built = await asyncio.to_thread(is_built)
        raise NotFound(f"There is no path {path}. GET /console is the page." if built else _NOT_BUILT) from None
    headers = {**HEADERS, "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
    if is_known(call.request.scope, headers["ETag"].strip('"')):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(content, headers=headers, media_type=_TYPES[Path(name).suffix])


def _endpoint(path: str, **parts: Any) -> Endpoint:
    return Endpoint(
        method="GET",
        path=path,
        tag=Tag.DAEMON,
        default=Form.TEXT,
        handler=_console,
        headers=(Header(name="If-None-Match", meaning="The ETag of what is known already."),),
        errors=(NotFound,),
        public=True,
        **parts,
    )


_NOT_MODIFIED_ANSWER: Final = Success(meaning="What is known already is still good.", content={})

ENDPOINTS: Final = (
    _endpoint(
        "/console",
        name="get_console",
        summary="The console for people; touches nothing",
        description="A page that watches this daemon through the API, with the key that is entered there.",
        answers={
            HTTPStatus.OK: Success(meaning="A page that needs nothing from elsewhere.", content={"text/html": str}),
            HTTPStatus.NOT_MODIFIED: _NOT_MODIFIED_ANSWER,
        },
    ),
    _endpoint(
        "/console/{asset}",
        name="get_console_asset",
        summary="A file that the console is made of; touches nothing",
        description="Its script, its style sheet and its pictures.",
        answers={
            HTTPStatus.OK: Success(
                meaning="The file.", content={"text/javascript": str, "text/css": str, "image/svg+xml": str}
            ),
            HTTPStatus.NOT_MODIFIED: _NOT_MODIFIED_ANSWER,
        },
    ),
)
