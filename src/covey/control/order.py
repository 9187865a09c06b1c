"""The order in which training rows are visited."""

from __future__ import annotations

import random


def stream_indices(size: int, start: int, count: int, shuffle: bool, seed: int) -> list[int]:
    """Row numbers at positions ``start .. start + count`` of an endless stream of passes, each pass shuffled anew.

    A pure function of its arguments, so a resumed run needs no stored position beyond the step.
    """
    picked: list[int] = []
    position = start
    while len(picked) < count:
        epoch, offset = divmod(position, size)
        order = list(range(size))
        if shuffle:
            random.Random(f"covey-order:{seed}:{epoch}").shuffle(order)
        part = order[offset : offset + count - len(picked)]
        picked += part
        position += len(part)
    return picked
