"""shelld-py: the daemon that gives an LLM agent its computer."""

from shelld_py.version import __version__

__all__ = ["__version__"]
