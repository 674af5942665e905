"""The rewrite of convolutions with large windows into spectral ones, where these are faster.

    conv2d(x, w)              ->   spectral_conv(x, kernel_spectrum(w))      = ifft . pointwise_mul . fft
    depthwise_conv2d(x, w)    ->   the same, in as many groups as channels

How large a window must be depends on extents, which programs do not know. So it is structures that are rewritten, when
they are planned: the same leaves in the same order, and other algebra above them. Both ways are estimated, and the
spectral one is taken where the model promises enough. Other policies than "fast" leave convolutions as they are: the
error of a transform is one of its whole image (`ops/spectral/records.py`), and which way is faster differs between
machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tessera.dtypes import fp64
from tessera.errors import CompileError
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.leaf import Placeholder
from tessera.lazy.node import Node, joined
from tessera.lazy.policy import current_policy
from tessera.lazy.structures import interning
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.interning import PENDING_LIMIT
from tessera.lazy.structures.structure import Occurrence, Structure, contiguous_strides
from tessera.lazy.threads import worker_count
from tessera.ops.algebra import call
from tessera.ops.pins import PIN
from tessera.ops.spectral.records import ConvolutionGeometry, Pair, convolve
from tessera.ops.window.geometry import TO_FIRST, TO_LAST
from tessera.rewrite.engine import Firing
from tessera.scheduling.families.convolution.spectral_cost import SpectralProblem, fast_points, spectral_seconds
from tessera.scheduling.model.machine import Machine

RULE: Final = "spectral-convolution"

LEAST_TAPS: Final = 25
"""Elements of a window below which no transform was ever faster: smaller ones are not even estimated."""

MOST_BYTES: Final = 1 << 27
"""Memory that the spectra of a layer's kernels may take."""

ENOUGH: Final = 1.25
"""How many times as fast the model has to say that the spectral way is."""

_OPERATORS: Final = 8


class Planning(Protocol):
    """What is known of the CPU and its libraries."""

    @property
    def has_native_transforms(self) -> bool:
        """Whether kernels can call the transforms of torch's library, and need not call torch."""

    def machine(self, workers: int) -> Machine:
        """The rates of one of so many workers."""

    def direct_seconds(self, structure: Structure) -> float:
        """What the cost model expects of a structure as it is."""


class Rewritten(NamedTuple):
    """A structure as it is planned, and what was rewritten in it."""

    structure: Structure
    log: tuple[Firing, ...]


class _Convolution(NamedTuple):
    """A convolution, however it is written: images have their channels last where `last`."""

    image: tuple[int, int, int, int]
    kernel: tuple[int, int, int, int]
    window: ConvolutionGeometry
    last: bool


def _of_conv2d(node: Structure) -> _Convolution:
    named = node.named_attributes
    count, height, width, channels = node.operands[0].shape
    window = ConvolutionGeometry(named["stride"], named["padding"], named["dilation"], named["groups"])
    return _Convolution((count, channels, height, width), _four(node.operands[1].shape), window, True)


def _of_depthwise(node: Structure) -> _Convolution:
    named = node.named_attributes
    last = named["layout"] == "NHWC"
    image = _four(node.operands[0].shape)
    image = (image[0], image[3], image[1], image[2]) if last else image
    top, bottom, left, right = named["padding"]
    outputs, *size = node.operands[1].shape
    window = ConvolutionGeometry(named["stride"], (top, left, bottom, right), named["dilation"], image[1])
    return _Convolution(image, (outputs, 1, size[0], size[1]), window, last)


def _four(shape: Sequence[int]) -> tuple[int, int, int, int]:
    first, second, third, fourth = shape
    return first, second, third, fourth


_RULES: Mapping[str, Callable[[Structure], _Convolution]] = {
    "conv2d": _of_conv2d,
    "depthwise_conv2d": _of_depthwise,
}


def with_spectra(structure: Structure, surroundings: Planning) -> Rewritten:
    """A structure of the CPU with those convolutions rewritten that transforms are faster for under the policy in
    force.
    """
    if structure.device not in (None, CPU) or current_policy().mode != "fast":
        return Rewritten(structure, ())
    order = structure.post_order()
    pinned = {each.operands[0] for each in order if each.structure.operator is PIN}
    found: dict[int, tuple[_Convolution, Pair]] = {}
    log: list[Firing] = []
    for place, occurrence in enumerate(order):
        node = occurrence.structure
        rule = None if node.operator is None or place in pinned else _RULES.get(node.operator.name)
        if rule is not None:
            _consider(place, node, rule(node), surroundings, found, log)
    # What takes a convolution's place has a few operators more.
    if not found or structure.size + _OPERATORS * len(found) > PENDING_LIMIT:
        return Rewritten(structure, ())
    return Rewritten(_replayed(structure, order, found), tuple(log))


def _consider(
    place: int,
    node: Structure,
    convolution: _Convolution,
    surroundings: Planning,
    found: dict[int, tuple[_Convolution, Pair]],
    log: list[Firing],
) -> None:
    image, kernel, window, _ = convolution
    if kernel[2] * kernel[3] < LEAST_TAPS or 0 in (*image, *kernel):
        return
    rows, columns = window.least_points((image[2], image[3]), (kernel[2], kernel[3]))
    points = fast_points(rows), fast_points(columns)
    problem = _problem(node, convolution, points, surroundings.has_native_transforms)
    if problem.spectra_bytes > MOST_BYTES:
        return
    spectral = spectral_seconds(problem, surroundings.machine(problem.workers))
    alone = surroundings.direct_seconds(_alone(node))
    if spectral * ENOUGH >= alone:
        return
    found[place] = convolution, points
    assert node.operator is not None
    before = f"{node.operator.name} of a window of {kernel[2]} x {kernel[3]} ({alone * 1e6:.0f} us predicted)"
    after = f"ifft . pointwise_mul . fft of {points[0]} x {points[1]} points ({spectral * 1e6:.0f} us predicted)"
    log.append(Firing(RULE, before, after))


def _problem(node: Structure, convolution: _Convolution, points: Pair, native: bool) -> SpectralProblem:
    image, kernel, window, _ = convolution
    return SpectralProblem(
        images=image[0],
        channels=image[1],
        outputs=kernel[0],
        groups=window.groups,
        height=image[2],
        results=window.results((image[2], image[3]), (kernel[2], kernel[3]))[0],
        rows=points[0],
        columns=points[1],
        itemsize=max(node.dtype.itemsize, 4),
        kept=_is_constant(node.operands[1]),
        native=native and node.dtype is not fp64,
        workers=worker_count(),
    )


def _is_constant(structure: Structure) -> bool:
    """Whether an operand is a view of a constant, of which spectra are kept."""
    while structure.operator is not None and structure.operator.name in ("reshape", "transpose", "slice"):
        (structure,) = structure.operands
    return structure.frozen


def _alone(node: Structure) -> Structure:
    """The convolution of operands that exist."""
    operands = tuple(
        interning.buffer(x.shape, contiguous_strides(x.shape), x.dtype, CPU, _is_constant(x)) for x in node.operands
    )
    assert node.operator is not None
    return interning.intern(node.operator, node.attributes, operands, (0, 1))


def _replayed(
    structure: Structure, order: Sequence[Occurrence], found: Mapping[int, tuple[_Convolution, Pair]]
) -> Structure:
    """The same algebra over the same leaves, but for what was found."""
    held: dict[int, Node] = {}
    made: list[Any] = []
    for place, occurrence in enumerate(order):
        node, operands = occurrence.structure, [made[index] for index in occurrence.operands]
        if occurrence.leaf is not None:
            made.append(held.setdefault(occurrence.leaf, Node((node, (Placeholder(node),)))))
        elif node.kind == "tuple":
            made.append(Node(joined(operands)))
        elif node.operator is None:
            made.append(Node((node, ())))
        elif place in found:
            image, kernel = operands
            made.append(_spectral(image, kernel, *found[place]))
        else:
            made.append(apply(node.operator, node.attributes, operands))
    result, leaves = made[-1].state
    # Plans take leaves in the order of the structure that was asked for: in another one they would compute with others.
    if leaves != tuple(held[number].leaves[0] for number in range(structure.leaf_count)):
        raise CompileError("a spectral rewrite changed the order of a structure's leaves")
    assert isinstance(result, Structure)
    return result


def _spectral(image: Node, kernel: Node, convolution: _Convolution, points: Pair) -> Any:
    planes = call("transpose", image, permutation=TO_FIRST) if convolution.last else image
    taps = kernel if len(kernel.structure.shape) == 4 else call("reshape", kernel, shape=convolution.kernel)
    result = convolve(planes, taps, convolution.window, points)
    return call("transpose", result, permutation=TO_LAST) if convolution.last else result
