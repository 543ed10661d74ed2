"""From the bytes of a terminal to what is shown of them. Knows no process."""
