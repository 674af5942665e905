"""Kernels written as LLVM IR text: names, counted loops, branches and addresses. `%table` and `%descriptors` are the
arguments of the kernel ABI.
"""

from __future__ import annotations

from collections.abc import Callable


class NativeText:
    """Writes a function: instructions, and counted loops as blocks with a phi."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._fresh = 0
        self.block = "entry"

    def name(self, hint: str) -> str:
        self._fresh += 1
        return f"%{hint}{self._fresh}"

    def add(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def let(self, hint: str, expression: str) -> str:
        made = self.name(hint)
        self.add(f"{made} = {expression}")
        return made

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def loop(self, count: str, body: Callable[[str], None], step: int = 1, first: str = "0") -> None:
        """`body(iv)` for iv = first, first + step, ... below `count`."""
        tag = self._fresh = self._fresh + 1
        before, head, inner, after = self.block, f"head{tag}", f"body{tag}", f"after{tag}"
        self.add(f"br label %{head}")
        self.start(head)
        place = len(self.lines)
        self.lines.append("")
        iv = f"%i{tag}"
        self.add(f"%more{tag} = icmp slt i64 {iv}, {count}")
        self.add(f"br i1 %more{tag}, label %{inner}, label %{after}")
        self.start(inner)
        body(iv)
        self.add(f"%next{tag} = add i64 {iv}, {step}")
        self.add(f"br label %{head}")
        self.lines[place] = f"  {iv} = phi i64 [ {first}, %{before} ], [ %next{tag}, %{self.block} ]"
        self.start(after)

    def go_on_if(self, condition: str, otherwise: str) -> None:
        """What follows runs where the condition holds; else the block `otherwise`."""
        tag = self.name("held")[1:]
        self.add(f"br i1 {condition}, label %{tag}, label %{otherwise}")
        self.start(tag)

    def when(self, condition: str, body: Callable[[], None]) -> None:
        """`body()` where the condition holds."""
        tag = self.name("when")[1:]
        self.add(f"br i1 {condition}, label %{tag}, label %{tag}.done")
        self.start(tag)
        body()
        self.add(f"br label %{tag}.done")
        self.start(f"{tag}.done")

    # -- addresses and numbers ----------------------------------------------------------------------------------------

    def mul(self, a: str, b: str | int) -> str:
        return self.let("m", f"mul i64 {a}, {b}")

    def plus(self, a: str, b: str | int) -> str:
        return self.let("a", f"add i64 {a}, {b}")

    def at(self, base: str, nbytes: str) -> str:
        return self.let("p", f"getelementptr i8, ptr {base}, i64 {nbytes}")

    def word(self, place: int, hint: str = "d") -> str:
        """A word of the descriptors."""
        pointer = self.let("d", f"getelementptr i64, ptr %descriptors, i64 {place}")
        return self.let(hint, f"load i64, ptr {pointer}")

    def buffer(self, slot: str, offset: str) -> str:
        """The address of an operand, by a word of the table and what is added to it."""
        entry = self.let("s", f"getelementptr i64, ptr %table, i64 {slot}")
        return self.at(self.let("b", f"load ptr, ptr {entry}"), offset)
