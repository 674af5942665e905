"""`Tensor`: the lazy handle that operators give and users hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeAlias

import numpy
import torch

from tessera.compiler import entry
from tessera.dtypes import FLOAT8, bf16, dtype_of
from tessera.errors import ArgumentError, DeviceError, DTypeError, InPlaceError, ValueControlFlowError
from tessera.lazy import evaluation
from tessera.lazy.devices import CPU, INTERPRETER, check_device, is_cpu_memory, is_mesh, torch_device
from tessera.lazy.issuing import issue
from tessera.lazy.layouts import Layout
from tessera.lazy.leaves.conversion import NotATensorError, beside
from tessera.lazy.leaves.export import exported, to_torch
from tessera.lazy.leaves.leaf import Placeholder
from tessera.lazy.leaves.shown import as_html, as_text
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.leaves.transfer import on_device
from tessera.lazy.node import leaf_node, use_node_class
from tessera.lazy.policy import is_current
from tessera.lazy.structures.printing import expression
from tessera.lazy.structures.structure import Shape, contiguous_strides
from tessera.ops import pins, torch_functions
from tessera.ops.algebra import Algebra, call
from tessera.ops.contraction import calls as products
from tessera.ops.methods import Methods
from tessera.ops.outputs import evaluate_into, issue_into
from tessera.runtime.streams.stream import Stream
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.sharding.tensors import properties as tensors
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.specs import ShardSpec
from tessera.system.notebooks import ShownText, preformatted

if TYPE_CHECKING:  # what the doors add, as `doors/protocols/methods.py` says
    from tessera.methods import OperatorMethods
else:
    OperatorMethods = Methods

Array: TypeAlias = numpy.ndarray[Any, Any]
Device: TypeAlias = torch.device
TorchTensor: TypeAlias = torch.Tensor
Output: TypeAlias = torch.Tensor | Array


def _no_in_place(self: Tensor, other: object) -> NoReturn:
    raise InPlaceError("tensors are immutable", hints=["write x = x + y for x += y"])


class Tensor(OperatorMethods):
    """A tensor that is computed when its values are asked for.

    Operators on it make expressions; `eval()`, `torch()`, `numpy()`, `item()` and `print()` compute. Results are
    immutable: `torch()` shares their memory, and after a write there using them raises InputMutatedError
    (E_INPUT_MUTATED); what `numpy()` gives cannot be written to; other libraries (DLPack) get copies.
    """

    __slots__ = ()

    unpickler: ClassVar[Callable[..., Tensor]]
    """What pickles call, given by `doors/protocols/pickling.py`."""

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def eval(self, out: Output | None = None, stream: Stream | None = None) -> Tensor:
        """Computes the values, once, and gives the tensor itself. With `out`, into that memory, of the same shape
        and dtype. With `stream`, on that stream: the call returns at once, and whoever reads the values waits for them.

        Raises InputMutatedError (E_INPUT_MUTATED) where a torch input was written to since it was used.
        """
        if out is not None or stream is not None:
            return self._eval_elsewhere(out, stream)
        structure, leaves = self.state
        plan = structure.plan
        if plan is None or not is_current(plan.threads):
            evaluation.evaluate((self,))
            return self
        for leaf in leaves:
            if (leaf.version is not None and leaf.owner._version != leaf.version) or (
                leaf.origin and leaf.owner.data_ptr() != leaf.origin
            ):
                evaluation.evaluate((self,))  # which finds out why
                return self
        before_run = evaluation.before_run
        if before_run is not None:
            before_run()
        (result,) = plan.run(leaves)
        self.computed = structure
        self.state = (result.structure, (result,))
        return self

    def _eval_elsewhere(self, out: Output | None, stream: Stream | None) -> Tensor:
        if out is None:
            return issue(self, stream)
        if stream is None:
            evaluate_into(self, out)
        else:
            issue_into(self, out, stream)
        return self

    def torch(self) -> TorchTensor:
        """The values as a torch tensor that shares the memory: torch counts writes there, and what is computed from
        this tensor after one raises InputMutatedError (E_INPUT_MUTATED). Of numpy arrays, which do not count, a copy.
        """
        return exported(self.eval().state[1][0])

    def numpy(self) -> Array:
        """The values as a read-only numpy array that shares the memory; `.numpy().copy()` may be written to.

        Raises DTypeError for bf16, fp8_e4m3 and fp8_e5m2, which numpy does not have, and DeviceError for values that
        are not in CPU memory.
        """
        if self.dtype in _NOT_IN_NUMPY:
            raise DTypeError(f"numpy has no {self.dtype}", hints=['.to("fp32").numpy()', "or .torch()"])
        if not is_cpu_memory(self._device) and not is_mesh(self._device):
            raise DeviceError(f"numpy has no arrays on {self._device}", hints=['.to("cpu").numpy()'])
        array = self._values().numpy()
        array.flags.writeable = False
        return array

    def _values(self) -> TorchTensor:
        """The values where they lie, for code that does not write there."""
        return to_torch(self.eval().state[1][0])

    def item(self) -> bool | int | float:
        """The value of a tensor of one element, as a Python number. Raises ArgumentError for more elements, or none."""
        if self.size != 1:
            raise ArgumentError(f"item() of a tensor of shape {self.shape}")
        value: bool | int | float = self._values().item()
        return value

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self._values().tolist()

    def to(self, target: object = None, *, dtype: object = None, device: object = None) -> Tensor:
        """The tensor in another dtype, on a device ("cpu", "cuda:0", "interpreter"; evaluated, and copied where it is
        in other memory), or in the dtype and on the device of another tensor. Raises DTypeError or DeviceError for
        what there is not.
        """
        if isinstance(target, Tensor | torch.Tensor):
            dtype, device = target.dtype, target.device
        elif isinstance(target, torch.device) or (isinstance(target, str) and target.split(":")[0] in _DEVICES):
            device = target
        elif target is not None or (dtype is None and device is None):
            dtype = target
        made = self if dtype is None and device is not None else self._cast(dtype)
        if device is None:
            return made
        place = check_device(device)
        return made if place == made._device else leaf_node(on_device(made.eval().state[1][0], place))

    def _cast(self, target: object) -> Tensor:
        dtype = dtype_of(target)
        result: Tensor = self if dtype is self.dtype else call("cast", self, dtype=dtype)
        return result

    def pin(self, **knobs: KnobValue) -> Tensor:
        """This result, computed by a kernel whose schedule has these knobs: `op.matmul(a, b).pin(tile=(128, 128, 64))`.
        The other knobs are chosen around them; `inspect("schedule")` shows all. Where it is another result transposed
        or reshaped, as images with channels first are, that one's kernel is meant.

        Raises ArgumentError (E_ARGUMENT) where no operator with a kernel stands at the root, or no knob is named. What
        the kernel does not have, or what breaks a rule, is refused when it is planned: ScheduleError
        (E_SCHEDULE_ILLEGAL) or TuneSpaceEmptyError (E_TUNE_SPACE_EMPTY).
        """
        refused = pins.why_not_pinned(self.state[0])
        if refused:
            raise ArgumentError(refused, hints=["pin the result of an operator that computes"])
        if not knobs:
            raise ArgumentError("pin() names no knob", hints=["for example pin(tile=(128, 128, 64))"])
        result: Tensor = call("pin", self, knobs=str(Schedule.given(knobs)))
        return result

    # -- meshes -------------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout | None:
        """How the tensor lies on its mesh, or will lie once it is computed: `str(x.layout)` is "dp, tp"; None of one
        that lies on a single device. Nothing is computed or moved for it.
        """
        return tensors.layout_of(self) if is_mesh(self._device) else None

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that the tensor lies on; None of one on a single device."""
        return tensors.mesh_of(self) if is_mesh(self._device) else None

    def reshard(self, layout: ShardSpec | Layout | None) -> Tensor:
        """The tensor in another layout; None has every device hold all of it. Differentiable.

        Raises MeshError (E_MESH) for a tensor that lies on no mesh, and for a layout that its mesh does not have.
        """
        result: Tensor = tensors.resharded(self, layout)
        return result

    def local(self, coordinates: Mapping[str, int] | None = None) -> Tensor:
        """The shard that this process holds, a tensor of a single device that shares the memory; on an emulated mesh
        that of the place at some coordinates. Raises MeshError (E_MESH) where there is none, or several.
        """
        tensors.mesh_of(self)
        result: Tensor = leaf_node(tensors.local_shard(self.eval().state[1][0], coordinates))
        return result

    def full(self) -> Tensor:
        """All of the tensor, on this device. On a running mesh a collective: every rank asks for it. Raises
        MemoryLimitError (E_MEMORY_LIMIT) where the limit of the settings does not hold it.
        """
        result: Tensor = leaf_node(from_torch(self._values())) if is_mesh(self._device) else self
        return result

    def inspect(self, level: str) -> ShownText:
        """The text of a level of the compiler for this expression, also after its evaluation: "graph", "rewrites",
        "fusion", "schedule", "tile" or "target".
        """
        return entry.inspect(self, level)

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """Where the values lie: for the device "interpreter" too that is the CPU's memory."""
        return torch_device(self._device)

    @property
    def _device(self) -> str:
        return self.state[0].device or CPU

    @property
    def strides(self) -> Shape:
        """Strides in elements; of a pending result those of a contiguous tensor, which many become: how one lies is
        decided when it is evaluated, by what it is made from.
        """
        structure = self.state[0]
        return structure.strides if structure.kind == "buffer" else contiguous_strides(structure.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.state[0].shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for extent in self.state[0].shape:
            count *= extent
        return count

    # -- sequences and products ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[place] for place in range(len(self)))

    def __matmul__(self, other: object) -> Tensor:
        try:
            result: Tensor = products.matmul(self, other if isinstance(other, Algebra) else beside(other, self))
        except NotATensorError:
            return NotImplemented
        return result

    def __rmatmul__(self, other: object) -> Tensor:
        try:
            result: Tensor = products.matmul(beside(other, self), self)
        except NotATensorError:
            return NotImplemented
        return result

    # -- what Python and other libraries ask for ----------------------------------------------------------------------

    def __str__(self) -> str:
        """The values, which are computed for it; inside a function that is being traced, where there are none, what
        `repr` says. `repr` itself, which debuggers call, never computes.
        """
        structure, leaves = self.state
        # Nothing is evaluated on a mesh: where one rank prints, the others need not come.
        known = structure.is_leaf or is_mesh(structure.device)
        if not known and not any(isinstance(leaf, Placeholder) for leaf in leaves):
            self.eval()
        return repr(self)

    def __repr__(self) -> str:
        structure, leaves = self.state
        if is_mesh(structure.device):
            return tensors.described(self)
        place = "" if structure.device in (None, CPU) else f", {structure.device}"
        head = f"Tensor({list(structure.shape)}, {structure.dtype}{place}"
        if not structure.is_leaf:
            return f"{head}, pending: {expression(structure)})"
        if isinstance(leaves[0], Placeholder):
            return f"{head}, argument of a traced function)"
        return as_text(leaves[0], head)

    def _repr_html_(self) -> str:
        """What a notebook shows: the outermost values where there are any. As `repr`, it never computes."""
        structure, leaves = self.state
        if not structure.is_leaf or is_mesh(structure.device) or isinstance(leaves[0], Placeholder):
            return preformatted(repr(self))
        place = "" if structure.device in (None, CPU) else f", {structure.device}"
        return as_html(leaves[0], f"Tensor({list(structure.shape)}, {structure.dtype}{place})")

    def __format__(self, form: str) -> str:
        return format(self._value_for("a format"), form) if form else str(self)

    def _value_for(self, question: str) -> bool | int | float:
        """The value of the one element, which is computed for it. Raises ValueControlFlowError (E_VALUE_CONTROL_FLOW)
        inside a function that is being traced.
        """
        if any(isinstance(leaf, Placeholder) for leaf in self.state[1]):
            raise ValueControlFlowError(
                f"{question} of a tensor that depends on arguments, which have no values while the kernel is traced",
                hints=["op.where(condition, a, b) chooses by value", "or call the kernel first, and ask its result"],
            )
        if self.size != 1:
            raise ArgumentError(
                f"{question} of a tensor of shape {self.shape}", hints=["reduce it to one element first"]
            )
        return self.item()

    def __bool__(self) -> bool:
        return bool(self._value_for("bool()"))

    def __int__(self) -> int:
        return int(self._value_for("int()"))

    def __float__(self) -> float:
        return float(self._value_for("float()"))

    def __complex__(self) -> complex:
        return complex(self._value_for("complex()"))

    def __index__(self) -> int:
        if self.dtype.kind != "int":
            raise TypeError(f"a tensor of {self.dtype} is no index")
        return int(self._value_for("an index"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return numpy.array(array, dtype=dtype) if copy else array.astype(dtype or array.dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """A copy, as nobody would see writes to shared memory. Raises ArgumentError (E_ARGUMENT) for `copy=False`."""
        if options.pop("copy", None) is False:
            raise ArgumentError(
                "DLPack without a copy: nobody would see writes to the memory",
                hints=["leave copy=False out, or hand over tensor.torch()"],
            )
        return self._values().clone().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        # kDLCPU and kDLCUDA of dlpack.h.
        return (1, 0) if is_cpu_memory(self._device) else (2, self.device.index)

    def __reduce__(self) -> tuple[Any, ...]:
        values = self._values()
        # torch pickles no 8-bit floats outside of files of its own.
        stored = values.view(torch.uint8) if self.dtype in FLOAT8 else values
        return type(self).unpickler, (stored, self._device, values.dtype)

    def __copy__(self) -> Tensor:
        return Tensor(self.state)

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Tensor:
        # Values never change, so that a copy may share them.
        return Tensor(self.state)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Operators between torch and Tessera tensors are Tessera's; torch's functions take torch tensors only."""
        return torch_functions.answered(func, args, kwargs, Tensor)

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = __imatmul__ = __iand__ = __ior__ = _no_in_place

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise InPlaceError("tensors are immutable", hints=["x = x.at[index].set(value) gives a new one"])


use_node_class(Tensor)

_NOT_IN_NUMPY: Final = FLOAT8 | {bf16}
_DEVICES: Final = (CPU, INTERPRETER, "cuda", "mps", "meta", "xpu")


def restored(values: torch.Tensor, device: str = CPU, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor of pickled values; see `Tensor.unpickler`."""
    leaf = from_torch(values if dtype is None else values.view(dtype))
    tensor: Tensor = leaf_node(on_device(leaf, device) if device == INTERPRETER else leaf)
    return tensor
