"""The engine: shells, runs and their output. Knows nothing of HTTP."""
