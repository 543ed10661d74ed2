"""One bash, driven exactly. Knows no run, no state of a shell and no HTTP."""
