"""Shells and their runs. Knows no HTTP."""
