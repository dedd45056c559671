"""The small arithmetic of recipe files: `"w/2 - leg"`, `"style == 'round'"`, `"cos(tau*i/n)"`.

Recipes are data: an expression may hold numbers, strings, names, arithmetic, comparisons,
`a if c else b` and the functions below. Anything else is refused when the recipe is loaded.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping
from types import CodeType
from typing import Any

FUNCTIONS: dict[str, Any] = {
    "sin": math.sin,
    "cos": math.cos,
    "sqrt": math.sqrt,
    "abs": abs,
    "min": min,
    "max": max,
    "atan": math.atan,
    "floor": math.floor,
    "pi": math.pi,
    "tau": math.tau,
}

_ALLOWED = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)


class ExpressionError(ValueError):
    """An expression that is not arithmetic, or that uses an unknown name."""


@functools.cache
def _compile(text: str) -> tuple[CodeType, frozenset[str]]:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ExpressionError(f"{text!r} is not an expression ({error.msg})") from error
    names = set()
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ExpressionError(f"{text!r} uses {type(node).__name__}, which recipes may not")
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        ):
            raise ExpressionError(f"{text!r} calls something that is not a recipe function")
        if isinstance(node, ast.Name):
            names.add(node.id)
    code = compile(tree, "<recipe>", "eval")
    return code, frozenset(names)


def names_in(text: str) -> frozenset[str]:
    """Every name an expression uses, without the built-in functions.

    Raises:
      ExpressionError: the text is not a permitted expression.
    """
    return _compile(text)[1] - FUNCTIONS.keys()


def evaluate(value: Any, names: Mapping[str, Any]) -> Any:
    """A number as it is; a string as an expression over `names`; a list element by element.

    Raises:
      ExpressionError: the text is not a permitted expression or a name is unknown.
    """
    if isinstance(value, str):
        code, _ = _compile(value)
        try:
            return eval(code, {"__builtins__": {}, **FUNCTIONS}, names)
        except (NameError, TypeError, ZeroDivisionError, ValueError) as error:
            raise ExpressionError(f"{value!r}: {error}") from error
    if isinstance(value, list):
        return [evaluate(item, names) for item in value]
    return value
