"""One bash, driven exactly. Knows no run, no state of a shell and no HTTP. Others may import these rooms."""

__all__ = ["command", "confinement", "keeper", "process", "program", "root", "state"]
