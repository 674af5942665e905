"""Types of CUDA Tile IR: elements, pointers, tiles, and views of tensors in memory ("Tile IR", 5. Type System)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Padding: TypeAlias = Literal["", "zero", "neg_inf", "pos_inf"]
"""What is read outside of a view's tensor; "" is anything."""


@dataclass(frozen=True)
class ElementType:
    """A type of numbers: its name in Tile IR, what it is, and its bits."""

    name: str
    kind: Literal["float", "integer"]
    bits: int

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "float"

    @property
    def is_narrow(self) -> bool:
        """Whether functions of it are computed in f32."""
        return self.is_float and self.bits < 32


I1: Final = ElementType("i1", "integer", 1)
I8: Final = ElementType("i8", "integer", 8)
I16: Final = ElementType("i16", "integer", 16)
I32: Final = ElementType("i32", "integer", 32)
I64: Final = ElementType("i64", "integer", 64)
F16: Final = ElementType("f16", "float", 16)
BF16: Final = ElementType("bf16", "float", 16)
F32: Final = ElementType("f32", "float", 32)
TF32: Final = ElementType("tf32", "float", 32)
F64: Final = ElementType("f64", "float", 64)
F8E4M3FN: Final = ElementType("f8E4M3FN", "float", 8)
F8E5M2: Final = ElementType("f8E5M2", "float", 8)

ELEMENTS: Final = (I1, I8, I16, I32, I64, F16, BF16, F32, TF32, F64, F8E4M3FN, F8E5M2)
"""All of them, in the order of their numbers in the binary format."""


@dataclass(frozen=True)
class Pointer:
    """An address of elements."""

    element: ElementType

    @property
    def name(self) -> str:
        """As Tile IR writes it."""
        return f"ptr<{self.element.name}>"


@dataclass(frozen=True)
class TileType:
    """A tile; a scalar is one without dimensions."""

    element: ElementType | Pointer
    shape: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """As Tile IR writes it."""
        return f"tile<{'x'.join([*map(str, self.shape), self.element.name])}>"

    @property
    def number(self) -> ElementType:
        """The type of its elements, which are numbers."""
        assert isinstance(self.element, ElementType)
        return self.element

    def of(self, element: ElementType | Pointer) -> TileType:
        """A tile of this shape and other elements."""
        return TileType(element, self.shape)


@dataclass(frozen=True)
class TensorView:
    """A tensor in memory; None is an extent or stride that is known at run time."""

    element: ElementType
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    @property
    def name(self) -> str:
        """As Tile IR writes it."""
        shape, strides = (
            "x".join("?" if each is None else str(each) for each in self.shape),
            ",".join("?" if each is None else str(each) for each in self.strides),
        )
        return f"tensor_view<{shape}x{self.element.name}, strides=[{strides}]>"


@dataclass(frozen=True)
class PartitionView:
    """A tensor cut into tiles of one shape, which are numbered along each dimension."""

    tile: tuple[int, ...]
    tensor: TensorView
    padding: Padding

    @property
    def name(self) -> str:
        """As Tile IR writes it."""
        padding = f", padding_value = {self.padding}" if self.padding else ""
        return f"partition_view<tile=({'x'.join(map(str, self.tile))}){padding}, {self.tensor.name}>"


@dataclass(frozen=True)
class Token:
    """What orders accesses of memory."""

    name: str = "token"


Type: TypeAlias = TileType | TensorView | PartitionView | Token
