"""The stream of row numbers: whole passes, reproducible from any position."""

from __future__ import annotations

from covey.control.order import stream_indices


def test_unshuffled_rows_keep_their_order_in_every_pass() -> None:
    assert stream_indices(3, 0, 7, shuffle=False, seed=1) == [0, 1, 2, 0, 1, 2, 0]
    assert stream_indices(3, 5, 2, shuffle=False, seed=1) == [2, 0]


def test_every_pass_holds_every_row_once_in_an_order_of_its_own() -> None:
    stream = stream_indices(10, 0, 30, shuffle=True, seed=1)
    passes = [stream[:10], stream[10:20], stream[20:]]
    assert all(sorted(part) == list(range(10)) for part in passes)
    assert passes[0] != passes[1] != passes[2]


def test_any_cut_gives_the_same_stream() -> None:
    """A resumed run starts in the middle and needs no stored position."""
    whole = stream_indices(7, 0, 40, shuffle=True, seed=5)
    for size in (1, 3, 4, 7, 9):
        pieces = [stream_indices(7, start, min(size, 40 - start), True, 5) for start in range(0, 40, size)]
        assert [row for piece in pieces for row in piece] == whole


def test_the_seed_decides() -> None:
    assert stream_indices(20, 0, 20, True, 1) == stream_indices(20, 0, 20, True, 1)
    assert stream_indices(20, 0, 20, True, 1) != stream_indices(20, 0, 20, True, 2)


def test_a_draw_larger_than_the_data_set_goes_on_with_the_next_pass() -> None:
    assert sorted(stream_indices(2, 0, 6, True, 0)) == [0, 0, 0, 1, 1, 1]
