"""Memory of this process. GB means 1e9 bytes, as in the metric key ``memory/rss_gb``."""

from __future__ import annotations

import sys

import psutil

_GB = 1e9


def rss_gb() -> float:
    """Resident memory of this process now, in GB; its child processes are not counted."""
    return float(psutil.Process().memory_info().rss) / _GB


def peak_rss_gb() -> float:
    """The largest resident memory this process has had so far, in GB."""
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset) / _GB
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts KiB here, macOS bytes.
    return peak / _GB if sys.platform == "darwin" else peak * 1024 / _GB
