"""A client for the daemon: `Client`, and `AsyncClient` for asyncio. See docs/client.md.

Apart from the data that travels (`models`, `files.models`), errors and units it shares nothing with the daemon:
it imports neither the engine nor the server.
"""

from shelld_py.client.client import AsyncClient, AsyncSession, Client, Session
from shelld_py.client.connection import Retries
from shelld_py.client.events import DaemonEvent, Event, Gap, Output, Result
from shelld_py.client.failures import TransportError, UnknownAnswer, os_errors
from shelld_py.client.file_requests import RawContent
from shelld_py.client.requests import Metadata
from shelld_py.client.run_requests import Reply, WaitResult

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "Client",
    "DaemonEvent",
    "Event",
    "Gap",
    "Metadata",
    "Output",
    "RawContent",
    "Reply",
    "Result",
    "Retries",
    "Session",
    "TransportError",
    "UnknownAnswer",
    "WaitResult",
    "os_errors",
]
