"""The Model Context Protocol on the daemon's tools."""
