"""Intervals of a measured rate and of the difference of two."""

from __future__ import annotations

import math
from collections.abc import Sequence


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


def paired_difference(a: Sequence[bool], b: Sequence[bool], z: float = 1.96) -> tuple[float, float, float]:
    """Mean of a - b over the same prompts, with the ends of its interval (normal approximation; ``z`` 1.96: 95%).

    Prompts that both get right or both get wrong carry no information, so the interval is narrower than that of two
    separate rates. Raises ValueError on unequal or empty lists.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"need two lists of the same prompts, got {len(a)} and {len(b)}")
    gaps = [int(x) - int(y) for x, y in zip(a, b, strict=True)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / max(1, len(gaps) - 1)
    half = z * math.sqrt(variance / len(gaps))
    return mean, mean - half, mean + half
