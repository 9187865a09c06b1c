"""The answer parser: grammar, exactness, limits, and a bounded random search for crashes."""

from __future__ import annotations

import random
import time
from fractions import Fraction

import pytest

from covey.tasks.base import extract_answer
from covey.tasks.countdown_expr import ExpressionError, is_correct, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", Fraction(7)),
        ("(1+2)*3", Fraction(9)),
        ("8-3-2", Fraction(3)),  # left-associative: (8-3)-2
        ("8/4/2", Fraction(1)),
        ("8-(3-2)", Fraction(7)),
        ("1/3", Fraction(1, 3)),
        ("8/(3-8/3)", Fraction(24)),  # 3-8/3 is 1/3: exact only with fractions
        ("-3*4", Fraction(-12)),
        ("-(3+4)*2", Fraction(-14)),
        ("(-(-3))", Fraction(3)),
        (r"\frac{4+8}{\frac{6}{3}}", Fraction(6)),
        (r"\dfrac{(4)}{-2}", Fraction(-2)),
        (r"\left(9 - 3\right) \times 4", Fraction(24)),
        (r"$12 \div 4$", Fraction(3)),
        ("3\u00d74\u00f76\u22121\u00b72\u22c55", Fraction(-8)),  # 12/6 - 10
    ],
)
def test_value(text: str, value: Fraction) -> None:
    assert parse(text).value() == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "()",
        "4 5",
        "4$5",
        "3(4)",
        "(3)4",
        "+3",
        "3*-4",
        "--3",
        "3-",
        "(3",
        "3)",
        "[3+4]",
        "{3}",
        r"\frac48",
        r"\frac{4}{}",
        r"\frac{4}",
        r"\frac{4}{2",
        r"\frac{(4}{2)}",
        r"3\frac{4}{2}",
        r"\left 3",
        r"\right(3)",
        r"\sqrt{4}",
        r"\timesx",
        "3 = ",
        "= 3",
        "3 = 3 = 3",
        "3 = 1+2",
        "3 = +3",
        "\u0663+1",  # an Arabic digit
        "4\x00",
    ],
)
def test_refused_syntax(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


def test_parts_of_a_parsed_answer() -> None:
    expression = parse("(9-3)*4 = 24")
    assert expression.numbers == ("9", "3", "4")
    assert expression.postfix == ("9", "3", "-", "4", "*")
    assert expression.claimed == "24"


def test_claimed_target_must_be_the_target_as_spelled() -> None:
    assert is_correct("3-5 = -2", [3, 5], -2)
    assert is_correct("3-5 = \u22122", [3, 5], -2)
    assert not is_correct("3-5 = 2", [3, 5], -2)
    assert not is_correct("4*6 = 024", [4, 6], 24)


def test_length_limit_is_400_characters() -> None:
    padded = "4*6" + " " * 397
    assert is_correct(padded, [4, 6], 24)
    assert not is_correct(padded + " ", [4, 6], 24)


def test_zero_is_a_number_like_any_other() -> None:
    assert is_correct("5+0", [0, 5], 5)
    assert not is_correct("5+00", [0, 5], 5)
    assert not is_correct("5/0", [0, 5], 0)


@pytest.mark.parametrize("unit", ["(", "-", "((", "(-", "1+", "9", r"\frac{", "=", "$", "9*", "}", r"\left("])
def test_longest_legal_answers_return_fast(unit: str) -> None:
    text = (unit * 400)[:400]
    start = time.thread_time()
    is_correct(text, [1] * 200, 7)
    assert time.thread_time() - start < 0.05


def test_deepest_nesting_needs_no_recursion() -> None:
    assert is_correct("(" * 198 + "4*6" + ")" * 198, [4, 6], 24)


def test_large_numbers_stay_exact() -> None:
    product = 10**150 * 10**150
    assert is_correct(f"{10**150}*{10**150}", [10**150, 10**150], product)
    assert not is_correct(f"{10**150}*{10**150}", [10**150, 10**150], product + 1)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer>", "1"),
        ("opened by the prompt</think><answer>1</answer>", "1"),
        ("<think>a</think><think>b <answer>1</answer>", None),  # the second thought never ends
        ("<think>a</think></answer><answer>", None),
        ("<think>a</think><ANSWER>1</ANSWER>", None),
        ("<think>a</think><answer>1</answer></think>", None),
    ],
)
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


def test_random_strings_never_raise_and_never_pass_without_the_numbers() -> None:
    rng = random.Random(5)
    pieces = [
        *"0123456789+-*/()=${} .,_^!xe\\",
        r"\frac{",
        r"\times",
        r"\left(",
        "**",
        "//",
        "\u2212",
        "\u00b2",
        "\u200b",
    ]
    for _ in range(5000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 40)))
        assert is_correct(text, [7777, 8888, 9999], 1) is False


def test_random_sums_agree_with_exact_arithmetic() -> None:
    rng = random.Random(6)
    for _ in range(500):
        values = [rng.randint(0, 99) for _ in range(rng.randint(1, 8))]
        signs = [rng.choice((1, -1)) for _ in values[1:]]
        text = str(values[0]) + "".join(f"{'+' if s > 0 else '-'}{v}" for s, v in zip(signs, values[1:], strict=True))
        total = values[0] + sum(s * v for s, v in zip(signs, values[1:], strict=True))
        assert is_correct(text, rng.sample(values, len(values)), total)
        assert not is_correct(text, values, total + 1)
