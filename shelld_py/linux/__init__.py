"""Facts of the Linux kernel: processes, terminals, cgroups, ports. Knows no shell."""
