"""Interval of a measured rate."""

from __future__ import annotations

import math


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a rate, as two fractions in [0, 1]; ``z`` 1.96 is the 95% interval.

    Unlike the normal approximation it stays inside [0, 1] and is not empty at 0 of n or n of n. With ``n`` 0 nothing
    is known: (0, 1). Source: E. B. Wilson, JASA 22 (1927), 209-212. Raises ValueError unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"need 0 <= successes <= n, got successes={successes}, n={n}")
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    scale = 1.0 + z * z / n
    centre = (rate + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(rate * (1.0 - rate) / n + z * z / (4.0 * n * n))
    # At 0 of n and n of n the bound is exactly 0 or 1; rounding must not leave 1e-17 there.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return low, high
