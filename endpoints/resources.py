"""What this machine must lend the client before a sweep: file descriptors."""

from __future__ import annotations

import resource

_SLACK = 64  # the interpreter's own files, logs, the store, name look-ups


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the soft limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):  # macOS refuses more than its kernel's own ceiling
        return soft
    return wanted


def descriptor_shortage(concurrency: int, limit: int) -> str | None:
    """One sentence when `concurrency` connections cannot all be open under `limit` descriptors, else None."""
    if concurrency + _SLACK <= limit:
        return None
    return (
        f"concurrency {concurrency} needs {concurrency + _SLACK} open files, but the limit here is {limit}: "
        f"raise it (ulimit -n {concurrency + _SLACK}) or lower --concurrency to {max(1, limit - _SLACK)}"
    )
