"""The Model Context Protocol on the daemon's tools. Others may import this room."""

__all__ = ["endpoint"]
