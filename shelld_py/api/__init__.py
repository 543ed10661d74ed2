"""The API: its endpoints by subject, and the application made of them. Others may import these rooms."""

__all__ = ["app", "console", "metrics"]
