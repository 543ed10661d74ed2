"""HTTP itself: connections, who is let in, what is parsed and how it is answered. Others may import these rooms."""

__all__ = [
    "actions",
    "admission",
    "answers",
    "connection",
    "endpoint",
    "exchange",
    "keylock",
    "links",
    "listener",
    "proxied",
    "repeats",
    "requests",
    "routes",
    "run_requests",
    "sse",
]
