"""Adapters for agent frameworks. Each is a file of its own, imported alone, and brings nothing but its framework."""
