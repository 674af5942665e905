"""Code of what was computed with symbolic sizes: straight-line functions of the sizes, made once a computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.lazy.symbols.assumptions import LEAST, Assumptions
from tessera.lazy.symbols.integers import is_symbolic
from tessera.lazy.symbols.polynomials import Frozen, Quotient, Size, frozen


class _Writer:
    """Writes polynomials as lines of a function, each once."""

    def __init__(self, assumptions: Assumptions) -> None:
        self.assumptions = assumptions
        self.lines: list[str] = []
        self._names: dict[Frozen, str] = {}
        self._atoms: dict[int, str] = {}

    @property
    def parameters(self) -> list[str]:
        """The names of the sizes, in order."""
        return [f"n{atom.number}" for atom in self.assumptions.atoms if isinstance(atom, Size)]

    def polynomial(self, terms: Frozen) -> str:
        """The name of a polynomial's value, or its digits."""
        if not terms:
            return "0"
        if len(terms) == 1 and not terms[0][0]:
            return str(terms[0][1])
        if len(terms) == 1 and len(terms[0][0]) == terms[0][1] == 1:
            return self._atom(terms[0][0][0])
        if terms not in self._names:
            parts = []
            for monomial, factor in terms:
                factors = [self._atom(atom) for atom in monomial]
                parts.append("*".join(factors if factor == 1 and factors else [*factors, str(factor)]))
            self._names[terms] = self._named(" + ".join(parts))
        return self._names[terms]

    def _named(self, expression: str) -> str:
        self.lines.append(f"t{len(self.lines)} = {expression}")
        return f"t{len(self.lines) - 1}"

    def _atom(self, number: int) -> str:
        if number not in self._atoms:
            atom = self.assumptions.atoms[number]
            if isinstance(atom, Quotient):
                dividend, divisor = self.polynomial(atom.dividend), self.polynomial(atom.divisor)
                # Whether a divisor may be 0, another condition says, which may stand further down.
                checked = "" if divisor.isdigit() else f" if {divisor} else 0"
                self._atoms[number] = self._named(f"{dividend} // {divisor}{checked}")
            else:
                self._atoms[number] = f"n{atom.number}"
        return self._atoms[number]

    def value(self, value: Any) -> str:
        """What stands for a number, or for a tuple or list of such, lists as tuples."""
        if is_symbolic(value):
            return self.polynomial(frozen(value.terms))
        if isinstance(value, tuple | list):
            return f"({''.join(self.value(each) + ',' for each in value)})"
        assert value is None or type(value) in (int, bool), f"no number: {value!r}"
        return repr(value)

    def function(self, result: str) -> Callable[..., Any]:
        """The function of the sizes that runs the lines, and gives the result."""
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return {result}"])
        found: dict[str, Any] = {}
        exec(compile(f"def computed({', '.join(self.parameters)}):\n{body}", "<sizes>", "exec"), found)
        function: Callable[..., Any] = found["computed"]
        return function


def numbers_of(assumptions: Assumptions, values: Any) -> Callable[..., Any]:
    """The function that gives nested tuples of numbers for other sizes, of which the conditions hold."""
    writer = _Writer(assumptions)
    return writer.function(writer.value(values))


def holds(assumptions: Assumptions) -> Callable[..., bool]:
    """The function that says whether sizes meet all conditions that are not given."""
    writer = _Writer(assumptions)
    _demand(writer, "False")
    return writer.function("True")


def numbers_where(assumptions: Assumptions, values: Any) -> Callable[..., Any]:
    """The function that gives nested tuples of numbers for other sizes; None for sizes that do not meet all conditions
    that are not given.
    """
    writer = _Writer(assumptions)
    _demand(writer, "None")
    return writer.function(writer.value(values))


def _demand(writer: _Writer, refusal: str) -> None:
    """Writes the conditions that are not given as lines that give the refusal where one is not met."""
    zeros, bounds = writer.assumptions.conditions()
    if not writer.assumptions.is_further:
        writer.lines += [f"if {name} < {LEAST}: return {refusal}" for name in writer.parameters]
    for terms, is_zero in zeros.items():
        name = writer.polynomial(terms)
        writer.lines.append(f"if {name} {'!=' if is_zero else '=='} 0: return {refusal}")
    for terms, least in bounds.items():
        name = writer.polynomial(terms)
        writer.lines.append(f"if {name} < {least}: return {refusal}")
