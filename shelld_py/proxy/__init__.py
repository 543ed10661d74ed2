"""Passes requests on to what listens on a port of this machine. Knows no key, no shell and no link."""

__all__ = ("fields", "passing")
