"""Shells and their runs. Knows no HTTP. Others may import these rooms."""

__all__ = [
    "conditions",
    "data_directory",
    "keys",
    "limits",
    "live_run",
    "record",
    "registry",
    "run",
    "screens",
    "shell",
    "startup",
    "states",
    "store",
    "supervision",
]
