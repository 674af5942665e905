"""Lowering attention to pages for CPUs: `attention/decode.py` over runs of keys that lie in one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.scheduling.families.attention.decode import AHEAD, DecodingAttention
from tessera.scheduling.families.attention.online_softmax import KeyRange
from tessera.scheduling.families.paged_attention.pages import Pages
from tessera.scheduling.families.paged_attention.spec import PagedAttentionSpec
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.protocol import Sums
from tessera.scheduling.lowering.ranges import Range
from tessera.scheduling.lowering.spec import kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile


def lower_paged_attention(spec: PagedAttentionSpec, schedule: Schedule, vector_bytes: int) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` for a target with vectors of so many bytes."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    lanes = vector_bytes // spec.accumulator.dtype.itemsize
    PagedDecoding(spec, schedule, lanes, TileBuilder(block), arguments).lower()
    return module


class PagedDecoding(DecodingAttention):
    """The kernel with elements of a head along lanes, which looks up where keys lie."""

    def __init__(
        self,
        spec: PagedAttentionSpec,
        schedule: Schedule,
        lanes: int,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(spec, schedule, lanes, builder, arguments)
        self.paged = spec
        self.pages = Pages.of(builder, spec, arguments, self.extent)

    def key_range(self) -> KeyRange:
        """The keys that the queries of the block see, of which data say how many there are."""
        return self.pages.key_range(self.pages.length(self.at), self.at["q"], self.bm, self.extents["q"])

    def runs(self, key: SSAValue, width: SSAValue) -> Iterator[tuple[SSAValue, Range]]:
        """The keys of a block that lie in one page."""
        with self.builder.loop(*self._columns(key, width), 1) as loop:
            yield self._run(loop.index, key, width)

    def summed_runs(
        self, key: SSAValue, width: SSAValue, sums: Sums, add: Callable[[SSAValue, Range, Sums], Sums]
    ) -> Sums:
        """The sums after all pages of a block."""
        with self.builder.loop(*self._columns(key, width), 1, sums) as loop:
            loop.yielded = tuple(add(*self._run(loop.index, key, width), loop.carried))
        return loop.results

    def _columns(self, key: SSAValue, width: SSAValue) -> Range:
        """The columns of the table that name the pages of a block of keys."""
        builder, page = self.builder, self.pages.page
        past = builder.add(builder.add(key, width), builder.sub(page, builder.index(1)))
        return builder.floor_div(key, page), builder.floor_div(past, page)

    def _run(self, column: SSAValue, key: SSAValue, width: SSAValue) -> tuple[SSAValue, Range]:
        """Enters a page: where the block would begin in it, and the range of the block that lies there."""
        builder, page = self.builder, self.pages.page
        self.at["p"] = self.pages.named(column, self.at)
        self.next_page = self.pages.named(self.pages.after(column), self.at)
        begin = builder.sub(builder.mul(column, page), key)
        span = builder.maximum(builder.index(0), begin), builder.minimum(width, builder.add(begin, page))
        return builder.sub(builder.index(0), begin), span

    def ahead(self, key: SSAValue) -> Mapping[str, SSAValue]:
        """Where a later key lies, if pages are no shorter than that; past the last page what is fetched is not read."""
        builder, page, later = self.builder, self.pages.page, self.builder.add(key, self.builder.index(AHEAD))
        past = builder.add(builder.sub(later, page), builder.index(1))
        beyond = builder.minimum(builder.maximum(past, builder.index(0)), builder.index(1))
        between = builder.mul(beyond, builder.sub(self.next_page, self.at["p"]))
        return {"k": builder.sub(later, builder.mul(beyond, page)), "p": builder.add(self.at["p"], between)}

    def windowed(self, scores: SSAValue, key: SSAValue, keys: KeyRange) -> SSAValue:
        """The scores, -inf where a window has gone past a key; the walk of queries at one place begins in it."""
        spec, softmax = self.paged, self.softmax
        if not spec.window or spec.heads_as_queries:
            return scores
        past = self.builder.sub(keys.shift, self.builder.index(spec.window))
        shape = (self.bm, self.chunk)
        lowest = self.builder.splat(float("-inf"), self.dtype, shape)
        return softmax.select(softmax.below_diagonal(self.at["q"], key, past, shape), lowest, scores)
