"""The tools of an agent: what a model may call, described for it, done by the computer.

Others may import these rooms.
"""

__all__ = ["catalogue", "events", "shapes", "texts", "tool"]
