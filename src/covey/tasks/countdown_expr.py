"""Parser and exact evaluator for Countdown answers. Model text never reaches Python's own evaluation.

Grammar after tokenizing (white space and ``$`` separate tokens and mean nothing else)::

    answer  = sum [ "=" ["-"] number ]
    sum     = product { ("+" | "-") product }
    product = atom { ("*" | "/") atom }
    atom    = number | "(" ["-"] sum ")" | \\frac{ ["-"] sum }{ ["-"] sum }

and a sum may start with one "-" at the very start of the answer. The parser is iterative, so that no input can reach
the recursion limit, and the length cap bounds every number, so that each call takes well under a millisecond.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

MAX_ANSWER_CHARS = 400
"""Longer answers are wrong by policy; counted on the answer as written, white space included."""

_TOKEN = re.compile(r"(\s+|\$)|([0-9]+)|(\\[A-Za-z]+)|([-+*/(){}=\u00d7\u00f7\u2212\u00b7\u22c5])")
# multiplication sign, division sign, minus sign, middle dot, dot operator
_SIGNS = {"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "\u00b7": "*", "\u22c5": "*"}
_LATEX_OPERATORS = {r"\times": "*", r"\cdot": "*", r"\div": "/"}
_LATEX_FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac")
_LATEX_BRACKETS = {r"\left": "(", r"\right": ")"}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "neg": 3}


class ExpressionError(ValueError):
    """The text is not one expression of the grammar, or divides by zero."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed answer, e.g. "(9-3)*4 = 24": numbers ("9", "3", "4"), postfix ("9","3","-","4","*"), claimed "24"."""

    numbers: tuple[str, ...]
    postfix: tuple[str, ...]
    claimed: str | None
    """What follows "=", without white space; None when there is no "="."""

    def value(self) -> Fraction:
        """Exact value; ExpressionError on division by zero."""
        stack: list[Fraction] = []
        for token in self.postfix:
            if token == "neg":
                stack.append(-stack.pop())
            elif token in _PRECEDENCE:
                right, left = stack.pop(), stack.pop()
                stack.append(_apply(token, left, right))
            else:
                stack.append(Fraction(int(token)))
        return stack[-1]


def parse(text: str) -> Expression:
    """Parse an answer of at most MAX_ANSWER_CHARS characters; ExpressionError says why it is refused."""
    if len(text) > MAX_ANSWER_CHARS:
        raise ExpressionError(f"longer than {MAX_ANSWER_CHARS} characters")
    tokens = _expand_latex(_tokenize(text))
    claimed: str | None = None
    if "=" in tokens:
        cut = tokens.index("=")
        tail = tokens[cut + 1 :]
        tokens = tokens[:cut]
        if not (len(tail) in (1, 2) and tail[-1].isdigit() and tail[:-1] in ([], ["-"])):
            raise ExpressionError("'=' must be followed by one integer")
        claimed = "".join(tail)
    postfix = _to_postfix(tokens)
    return Expression(tuple(token for token in postfix if token.isdigit()), tuple(postfix), claimed)


def is_correct(text: str, nums: Sequence[int], target: int) -> bool:
    """Whether an answer text uses each of ``nums`` exactly once, spelled as given, and is exactly ``target``."""
    try:
        expression = parse(text)
        if expression.claimed is not None and expression.claimed != str(target):
            return False
        # Before evaluation: digits are compared as text, so "06" and "1.5" are not 6, 1 or 5.
        if Counter(expression.numbers) != Counter(str(number) for number in nums):
            return False
        return expression.value() == target
    except ExpressionError:
        return False


def _tokenize(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionError(f"unexpected character {text[position]!r}")
        position = match.end()
        if match.group(1) is None:
            token = match.group()
            tokens.append(_SIGNS.get(token, token))
    return tokens


def _expand_latex(tokens: list[str]) -> list[str]:
    r"""Rewrite \frac{a}{b} to ((a)/(b)) and \left( to (; braces are legal nowhere else."""
    plain: list[str] = []
    open_groups: list[str] = []  # "(", or which part of a fraction the "{" opened
    position = 0

    def expect(symbol: str) -> None:
        nonlocal position
        position += 1
        if position >= len(tokens) or tokens[position] != symbol:
            raise ExpressionError(f"expected {symbol!r}")

    while position < len(tokens):
        token = tokens[position]
        if token in _LATEX_BRACKETS:
            expect(_LATEX_BRACKETS[token])
            token = tokens[position]
        if token in _LATEX_FRACTIONS:
            expect("{")
            open_groups.append("numerator")
            plain += ["(", "("]
        elif token == "(":
            open_groups.append("(")
            plain.append("(")
        elif token == ")":
            _close(open_groups, "(")
            plain.append(")")
        elif token == "}" and open_groups and open_groups[-1] == "numerator":
            expect("{")
            open_groups[-1] = "denominator"
            plain += [")", "/", "("]
        elif token == "}":
            _close(open_groups, "denominator")
            plain += [")", ")"]
        elif token.startswith("\\") and token not in _LATEX_OPERATORS:
            raise ExpressionError(f"unknown command {token}")
        elif token == "{":
            raise ExpressionError("unexpected '{'")
        else:
            plain.append(_LATEX_OPERATORS.get(token, token))
        position += 1
    return plain


def _close(open_groups: list[str], kind: str) -> None:
    if not open_groups or open_groups.pop() != kind:
        raise ExpressionError("unbalanced bracket")


def _to_postfix(tokens: list[str]) -> list[str]:
    """Dijkstra's shunting-yard algorithm."""
    output: list[str] = []
    operators: list[str] = []
    wants_operand = True
    may_negate = True  # only at the start and right after an opening bracket
    for token in tokens:
        if wants_operand:
            if token == "(":
                operators.append(token)
                may_negate = True
                continue
            if token == "-" and may_negate:
                operators.append("neg")
            elif token.isdigit():
                output.append(token)
                wants_operand = False
            else:
                raise ExpressionError(f"expected a number, found {token!r}")
            may_negate = False
        elif token == ")":
            _pop_to_bracket(operators, output)
        elif token in _PRECEDENCE:
            while operators and operators[-1] != "(" and _PRECEDENCE[operators[-1]] >= _PRECEDENCE[token]:
                output.append(operators.pop())
            operators.append(token)
            wants_operand = True
        else:
            raise ExpressionError(f"expected an operator, found {token!r}")
    if wants_operand:
        raise ExpressionError("ends too early")
    while operators:
        if operators[-1] == "(":
            raise ExpressionError("unbalanced bracket")
        output.append(operators.pop())
    return output


def _pop_to_bracket(operators: list[str], output: list[str]) -> None:
    while operators and operators[-1] != "(":
        output.append(operators.pop())
    if not operators:
        raise ExpressionError("unbalanced bracket")
    operators.pop()


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if right == 0:
        raise ExpressionError("division by zero")
    return left / right
