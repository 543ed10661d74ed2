"""From the bytes of a terminal to what is shown of them. Knows no process."""

__all__ = ["excerpt", "line_search", "log", "picture", "reading", "recording", "screen", "text", "timing"]
