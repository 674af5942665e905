"""Applications: what operators may be applied to, drawn at random. Records say it: `Operator.application`.

Tests of whole programs make programs out of them (`tests/fuzz`), so that an operator takes part in them by its record
alone. A rule is handed one value that exists already, and asks for its operands by shape and dtype; who draws a program
finds them among the values that it has, brings values into that form, or makes new ones. `rule.py` has the types, the
other modules the rules that records name.
"""
