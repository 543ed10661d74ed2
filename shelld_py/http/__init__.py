"""The HTTP interface: parse, call, answer. Others may import these rooms."""

__all__ = ["app", "connection", "console", "keylock", "listener", "metrics"]
