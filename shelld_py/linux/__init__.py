"""Facts of the Linux kernel: processes, terminals, cgroups, ports. Knows no shell. Others may import these rooms."""

__all__ = [
    "cgroup_paths",
    "cgroups",
    "descriptors",
    "held_port",
    "oom",
    "orphans",
    "ports",
    "processes",
    "removal",
    "syscalls",
    "terminal",
    "terminal_wait",
    "threads",
    "users",
]
