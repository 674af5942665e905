"""Lowering attention to pages for GPUs: `attention/gpu/lowering.py`, whose steps look up where keys lie.

A step reads keys of one page. Where steps are whole in pages, step after step is key after key; else the last step of
each page is cut, and the walk is one over pages that are as long as their steps.
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.families.attention.gpu.grid import name_operands
from tessera.scheduling.families.attention.gpu.lowering import AttentionLowering, name_arguments
from tessera.scheduling.families.attention.online_softmax import KeyRange
from tessera.scheduling.families.paged_attention.pages import Pages
from tessera.scheduling.families.paged_attention.spec import PagedAttentionSpec
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.gpu_grid import with_hints
from tessera.scheduling.lowering.spec import kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile
from tessera.target import Target


def lower_paged_attention_gpu(spec: PagedAttentionSpec, schedule: Schedule, target: Target) -> ModuleOp:
    """The Tile IR of attention to pages; knobs are those of `paged_attention/gpu/space.py`."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    name_arguments(block, spec)
    name_operands(block, {"table": spec.table, "lengths": spec.lengths})
    PagedLowering(spec, schedule, TileBuilder(block), arguments, target).lower()
    return with_hints(module, schedule)


class PagedLowering(AttentionLowering):
    """The program of one block of queries."""

    def __init__(
        self,
        spec: PagedAttentionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
        target: Target,
    ) -> None:
        super().__init__(spec, schedule, builder, arguments, target)
        self.paged = spec
        self.whole = bool(schedule["whole_pages"])
        self.pages = Pages.of(builder, spec, arguments, self.extent)
        step, page = builder.index(self.bn), self.pages.page
        self.steps_of_page = builder.floor_div(builder.add(page, builder.sub(step, builder.index(1))), step)

    def count_keys(self) -> SSAValue:
        """How many keys the sequence has."""
        return self.pages.length(self.at)

    def key_range(self, queries: SSAValue) -> KeyRange:
        """The steps that the block of queries meets: where they begin if all pages lay one behind the other."""
        builder, step = self.builder, self.builder.index(self.bn)
        found = self.pages.key_range(self.keys, self.at["q"], self.bm, queries)
        if self.whole:
            if found.first is None:
                return found
            return replace(found, first=builder.mul(builder.floor_div(found.first, step), step))
        padded, page = builder.mul(self.steps_of_page, step), self.pages.page
        past = builder.floor_div(builder.add(found.end, builder.sub(page, builder.index(1))), page)
        first = None if found.first is None else builder.mul(builder.floor_div(found.first, page), padded)
        return replace(found, whole=builder.index(0), end=builder.mul(past, padded), first=first)

    def place(self, step: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Where in its page a step begins, and the number of its first key."""
        builder = self.builder
        padded = self.pages.page if self.whole else builder.mul(self.steps_of_page, builder.index(self.bn))
        column = builder.floor_div(step, padded)
        inside = builder.sub(step, builder.mul(column, padded))
        self.at["p"] = self.pages.named(column, self.at)
        self.at["p"].name_hint = "page"
        return inside, builder.add(builder.mul(column, self.pages.page), inside)

    def hide_outside(self, scores: SSAValue, key: SSAValue, at_edge: bool) -> SSAValue:
        """The scores, -inf also where the next page has begun, and where a window has gone past a key."""
        builder, softmax, spec, shape = self.builder, self.softmax, self.paged, (self.bm, self.bn)
        scores = super().hide_outside(scores, key, at_edge)
        if not self.whole:
            page = self.pages.page
            end = builder.mul(builder.add(builder.floor_div(key, page), builder.index(1)), page)
            scores = softmax.hide(scores, builder.mask(key, builder.minimum(end, self.keys), shape, 1))
        if not spec.window:
            return scores
        past = builder.sub(self.range.shift, builder.index(spec.window))
        lowest = builder.splat(float("-inf"), self.dtype, shape)
        if spec.heads_as_queries:
            before = builder.mask(key, builder.add(past, builder.index(1)), shape, 1)
        else:
            before = softmax.below_diagonal(self.at["q"], key, past, shape)
        return softmax.select(before, lowest, scores)

    def existing(self, values: SSAValue, element: DType, key: SSAValue, at_edge: bool) -> SSAValue:
        """The values, 0 past the last key: what a page has there may be NaN, which no weight of 0 takes away."""
        if not at_edge:
            return values
        builder, shape = self.builder, (self.bn, self.value_head)
        return self.softmax.select(builder.mask(key, self.keys, shape, 0), values, builder.splat(0.0, element, shape))
