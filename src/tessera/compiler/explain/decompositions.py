"""What users see of decompositions: which kernels run as several, by which rule and why, over which memory.

silu_gelu_tanh_mean_sub_abs_0: silu . gelu . tanh . mean . sub . abs; run as kernels of their own for these extents
    stages: the cost model expects reductions apart from dear maps to be faster: one kernel makes these once a pass
      0: silu_gelu_tanh_0 writes w0
      1: mean_1 reads w0, writes w1
      2: sub_abs_2 reads w0, w1
      w0: fp32 [500, 200], 0.4 MB, steps 0 to 2
      w1: fp32 [1, 200], 0.0008 MB, steps 1 to 2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tessera.compiler.bind.arrays import Storage, View
from tessera.compiler.bind.launches import AnyLaunch, Launch, views_of
from tessera.compiler.decompose.running import Decomposed
from tessera.compiler.graph.program import KernelItem

MB = 1e6


class Decompositions:
    """How the kernels of a program run that run as several; `launches` are those of the whole plan."""

    def __init__(self, found: Sequence[Decomposed], launches: Sequence[AnyLaunch]) -> None:
        self.launches = launches
        self.found = [each for each in found if self._is_used(each)]

    def lines(self, item: KernelItem) -> list[str]:
        """What is said of a kernel of the program; nothing where it runs as one."""
        own = [each for each in self.found if each.item is item]
        # The last one is the outermost: what ran inside of it came before.
        return list(self._told(own[-1], "    ")) if own else []

    def _is_used(self, decomposed: Decomposed) -> bool:
        """Whether its workspaces are: what is fused anew within it prepares its own."""
        if not decomposed.workspaces:
            return True
        storages = {view.storage for view in decomposed.workspaces.values()}
        return any(view.storage in storages for launch in self._steps(decomposed) for view in views_of(launch))

    def _steps(self, decomposed: Decomposed) -> Sequence[AnyLaunch]:
        return self.launches[decomposed.first : decomposed.end]

    def _told(self, decomposed: Decomposed, indent: str) -> Iterator[str]:
        rule, steps = decomposed.decomposition, self._steps(decomposed)
        yield f"{indent}{rule.name}: {rule.why}"
        names = self._workspaces(decomposed)
        views: dict[Storage, View] = {}
        for number, step in enumerate(steps):
            read = _named(_inputs(step), names)
            written = _named(_outputs(step), names)
            does = [f"{verb} {', '.join(found)}" for verb, found in (("reads", read), ("writes", written)) if found]
            yield f"{indent}  {number}: {_name(step)}{' ' * bool(does)}{', '.join(does)}"
            for view in views_of(step):
                views.setdefault(view.storage, view)
        for storage, name in names.items():
            dtype, shape = views[storage].dtype.name, list(views[storage].shape)
            first, last = storage.first - decomposed.first, storage.last - decomposed.first
            yield f"{indent}  {name}: {dtype} {shape}, {storage.nbytes / MB:.2g} MB, steps {first} to {last}"
        for inner in self.found:
            inside = decomposed.first <= inner.first and inner.end <= decomposed.end
            if inside and inner is not decomposed and inner.item is not decomposed.item:
                yield f"{indent}  {inner.item.name}:"
                yield from self._told(inner, f"{indent}    ")

    def _workspaces(self, decomposed: Decomposed) -> Mapping[Storage, str]:
        """The memory that steps hand each other, by names: those of the rule, else numbered."""
        given = {view.storage: name for name, view in decomposed.workspaces.items()}
        names: dict[Storage, str] = {}
        for step in self._steps(decomposed):
            for view in _outputs(step):
                storage = view.storage
                is_inner = decomposed.first <= storage.first and storage.last < decomposed.end
                if storage.leaf is None and is_inner and storage.last > storage.first and storage not in names:
                    names[storage] = given.get(storage, f"w{len(names)}")
        return names


def _inputs(launch: AnyLaunch) -> Sequence[View]:
    if not isinstance(launch, Launch):
        return launch.inputs
    outputs = _outputs(launch)
    return [view for view, _ in launch.call.arguments[: len(launch.call.arguments) - len(outputs)]]


def _outputs(launch: AnyLaunch) -> Sequence[View]:
    if not isinstance(launch, Launch):
        return launch.outputs
    first = min(output.argument for output in launch.subject.spec.outputs)
    return [view for view, _ in launch.call.arguments[first:]]


def _named(views: Sequence[View], names: Mapping[Storage, str]) -> list[str]:
    return list(dict.fromkeys(names[view.storage] for view in views if view.storage in names))


def _name(launch: AnyLaunch) -> str:
    return launch.call.item.name if isinstance(launch, Launch) else launch.operator.name
