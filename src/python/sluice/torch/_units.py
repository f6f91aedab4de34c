"""Which parameters of a module are fetched and released together.

A unit is a module with parameters, usually one of the repeated blocks. Everything that belongs to
no such module, or to several of them (tied weights), is in the root unit. The parameters of a unit
that do not learn are a unit of their own beside those that learn: two units, one module.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import torch

from .._errors import WrongJob

#: Names of modules, or a function that tells for a name and a module if it is a unit.
Policy = Union[None, Sequence[str], Callable[[str, torch.nn.Module], bool]]

#: A module outside of blocks with so many elements is a unit of its own, if it is called once.
_LARGE_ELEMS = 1 << 20


@dataclass(eq=False)
class Slot:
    """One parameter, by the first name that it has in the module."""

    name: str
    parameter: torch.nn.Parameter
    shape: torch.Size
    offset: int = 0  #: in its unit's flat vector, in elements
    placeholder: Optional[torch.Tensor] = None  #: stands for the values while they are elsewhere
    #: Its dtype, if it is not that of the unit, which is fp32 then: it has the values of a parameter
    #: that learns, and the bits of one that does not.
    own_dtype: Optional[torch.dtype] = None
    is_cast: bool = False  #: the unit has its values in fp32

    @property
    def elems(self) -> int:
        """Those of the unit that it takes."""
        count = self.shape.numel()
        if self.own_dtype is None or self.is_cast:
            return count
        return -(-count * self.own_dtype.itemsize // 4)


@dataclass(eq=False)
class Unit:
    """Parameters that are fetched together. `index` is its number in the plan."""

    index: int
    name: str
    slots: List[Slot]
    frozen: bool
    group: int = 0
    elems: int = 0  #: up to the end of the last parameter; the plan pads it


@dataclass(eq=False)
class Holder:
    """A module whose call uses units: the one that learns, the frozen one, or both."""

    name: str
    module: Optional[torch.nn.Module]  # None: the root
    units: List[Unit]

    @property
    def slots(self) -> List[Slot]:
        return [slot for unit in self.units for slot in unit.slots]


@dataclass(eq=False)
class Stage:
    """One use of a holder in a forward. `use`: how often the forward has used it before."""

    holder: Holder
    use: int = 0
    adds: bool = True  #: gradients come in its backward; false: torch has them until an earlier use's

    @property
    def name(self) -> str:
        name = self.holder.name or "root"
        return f"{name} (use {self.use + 1})" if self.use else name


def _has_parameters(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _is_callable(module: torch.nn.Module) -> bool:
    """False: it has no forward, as a ModuleList or a ModuleDict. What is in it is called."""
    return type(module).forward is not torch.nn.Module.forward


def _children(name: str, item: torch.nn.Module) -> List[Tuple[str, torch.nn.Module]]:
    """The children with parameters. In place of one that has no forward there are its own."""
    found: List[Tuple[str, torch.nn.Module]] = []
    for key, child in item.named_children():
        full = f"{name}.{key}" if name else key
        if _is_callable(child):
            found += [(full, child)] if _has_parameters(child) else []
        else:
            found += _children(full, child)
    return found


def _count(*modules: torch.nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def _blocks(module: torch.nn.Module) -> Dict[str, torch.nn.Module]:
    """The children of the outermost lists and sequences that have at least two with parameters, or
    one, if no list has two. In place of a child with most of the model there are the blocks in it,
    if these have most of the model, too."""
    half = _count(module) // 2

    def visit(name: str, item: torch.nn.Module, least: int) -> Dict[str, torch.nn.Module]:
        found: Dict[str, torch.nn.Module] = {}
        is_list = isinstance(item, (torch.nn.ModuleList, torch.nn.Sequential))
        blocks = _children(name, item) if is_list else []
        for full, block in blocks if len(blocks) >= least else ():
            inner = visit(full, block, 2) if _count(block) > half else {}
            found.update(inner if _count(*inner.values()) > half else {full: block})
        for key, child in item.named_children() if not found else ():
            found.update(visit(f"{name}.{key}" if name else key, child, least))
        return found

    return visit("", module, 2) or visit("", module, 1)


def _large_leaves(
    module: torch.nn.Module, taken: Dict[str, torch.nn.Module]
) -> Dict[str, torch.nn.Module]:
    """Modules without children, outside of blocks, whose own parameters are large."""
    found = {}
    for name, item in module.named_modules():
        inside = any(name == block or name.startswith(block + ".") for block in taken)
        elems = sum(p.numel() for p in item.parameters(recurse=False))
        is_leaf = name and not any(True for _ in item.children()) and _is_callable(item)
        if is_leaf and not inside and elems > _LARGE_ELEMS:
            found[name] = item
    return found


def _named(module: torch.nn.Module, names: Sequence[str]) -> Dict[str, torch.nn.Module]:
    modules = dict(module.named_modules())
    found = {}
    for name in names:
        if not isinstance(name, str):
            at = f"units[{names.index(name)}]"
            raise WrongJob(f"{at} is {type(name).__name__}, and must be a name")
        if name not in modules or not name:
            raise WrongJob(
                f'units: the module {type(module).__name__} has no part "{name}": names are those '
                "of module.named_modules()"
            )
        if not _has_parameters(modules[name]):
            raise WrongJob(f'units: "{name}" has no parameters')
        found[name] = modules[name]
    for one in found:
        for other in found:
            if other.startswith(one + "."):
                raise WrongJob(f'units: "{other}" is a part of "{one}", which is a unit already')
    return found


def choose_modules(module: torch.nn.Module, policy: Policy) -> Dict[str, torch.nn.Module]:
    """The modules that are units, by name, in the order of the module."""
    if policy is None:
        blocks = _blocks(module)
        blocks.update(_large_leaves(module, blocks))
        order = [name for name, _ in module.named_modules() if name in blocks]
        return {name: blocks[name] for name in order}
    if callable(policy) and not isinstance(policy, torch.nn.Module):
        names = [name for name, item in module.named_modules() if name and policy(name, item)]
        return _named(module, names)
    listed = None if isinstance(policy, (str, torch.nn.Module)) else _list_of(policy)
    if listed is None:
        what = policy if isinstance(policy, (str, int)) else type(policy).__name__
        raise WrongJob(f'units is "{what}", and must be a list of names or a function')
    return _named(module, listed)


def _list_of(items: Any) -> Optional[List[Any]]:
    """The items as a list; None: they are none."""
    try:
        return list(items)
    except TypeError:
        return None


#: Wrappers by their classes' names: some are costly to import, and not in each version of torch.
_WRAPPERS = {
    "DataParallel": "one process has one device",
    "DistributedDataParallel": "the engine itself averages over the ranks",
    "FullyShardedDataParallel": "the engine itself partitions over the ranks",
}


def check_kind(module: torch.nn.Module) -> None:
    for name, item in module.named_modules():
        kind, at = type(item).__name__, f' "{name}"' if name else ""
        if kind in _WRAPPERS:
            raise WrongJob(f"the module{at} is a {kind}: {_WRAPPERS[kind]}, so give what is inside")
        if isinstance(item, torch.jit.ScriptModule):
            raise WrongJob(f"the module{at} is of TorchScript, which is not supported")


def check_plain(name: str, parameter: torch.Tensor) -> None:
    """Refuses a parameter that is more, or less, than a tensor with values."""
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        raise WrongJob(f'the parameter "{name}" has no shape yet: call the lazy module once before')
    if type(parameter.data) is not torch.Tensor:
        raise WrongJob(
            f'the parameter "{name}" is a {type(parameter.data).__name__}, and must be a plain '
            "tensor"
        )
    if parameter.is_sparse or parameter.layout != torch.strided:
        raise WrongJob(f'the parameter "{name}" is not a dense tensor')
    if parameter.is_inference():
        raise WrongJob(
            f'the parameter "{name}" was made in torch.inference_mode(), and cannot learn: build '
            "the module outside of it"
        )
    if parameter.numel() == 0:
        raise WrongJob(f'the parameter "{name}" has no elements: leave it out')


def is_left(parameter: torch.Tensor) -> bool:
    """True of one that is torch's alone, like a buffer: it does not learn, and it holds no floats or
    is of a class other than Parameter. Quantized weights have scales beside them, and their backward
    may keep the address of their memory."""
    is_plain = type(parameter) is torch.nn.Parameter and parameter.is_floating_point()
    return not (parameter.requires_grad or is_plain)


def _check(name: str, parameter: torch.Tensor, device: torch.device) -> None:
    check_plain(name, parameter)
    if parameter.is_complex():
        raise WrongJob(
            f'the parameter "{name}" is {parameter.dtype}, and must be real: make it of '
            "torch.view_as_real(values), and take torch.view_as_complex(parameter) in the forward"
        )
    if parameter.device != device:
        raise WrongJob(
            f'the parameter "{name}" is on {parameter.device} and others are on {device}: a '
            "module has one device"
        )
    if parameter.requires_grad and parameter.dtype not in _DTYPES:
        raise WrongJob(
            f'the parameter "{name}" is {parameter.dtype}, and one that learns must be float32, '
            "bfloat16 or float16: convert the module (module.float())"
        )


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _common_dtype(names: Mapping[torch.nn.Parameter, str]) -> torch.dtype:
    """The dtype of all units: that of all parameters, or else fp32."""
    dtypes = {parameter.dtype for parameter in names}
    if len(dtypes) == 1:
        return dtypes.pop()
    for parameter, name in names.items():
        if parameter.requires_grad and parameter.dtype == torch.float16:
            raise WrongJob(
                f'the parameter "{name}" is {parameter.dtype} and learns, so that its gradients '
                "need a scale, and others have another dtype: convert it to torch.bfloat16 or "
                "torch.float32, or all others to torch.float16"
            )
    return torch.float32


def _find_owners(
    module: torch.nn.Module, chosen: Dict[str, torch.nn.Module]
) -> Dict[int, Set[str]]:
    """The units that each module is a part of, by its id. "" stands for the root."""
    found: Dict[int, Set[str]] = {id(item): set() for item in module.modules()}
    units = {id(item) for item in chosen.values()}

    def visit(item: torch.nn.Module) -> None:
        if id(item) not in units and not found[id(item)]:
            found[id(item)].add("")
            for child in item.children():
                visit(child)

    visit(module)
    for name, unit in chosen.items():
        for item in unit.modules():
            found[id(item)].add(name)
    return found


def make_holders(module: torch.nn.Module, policy: Policy) -> List[Holder]:
    """All units of the module: the root first, then one holder for each module of the policy."""
    if not isinstance(module, torch.nn.Module):
        raise WrongJob(f"the first argument is {type(module).__name__}, and must be a torch module")
    names = {p: name for name, p in module.named_parameters() if not is_left(p)}
    if not names:
        raise WrongJob(f"the module {type(module).__name__} has no parameters to train")
    check_kind(module)
    if not any(p.requires_grad for p in names):
        raise WrongJob("no parameter of the module learns: set requires_grad of some of them")
    device = next(iter(names)).device
    for parameter, name in names.items():
        _check(name, parameter, device)
    dtype = _common_dtype(names)
    if device.type not in ("cpu", "cuda"):
        raise WrongJob(
            f"the module is on {device}, and must be on the CPU or a CUDA device; "
            "sluice.torch.init builds modules without values"
        )
    chosen = choose_modules(module, policy)
    parts = _find_owners(module, chosen)
    owners: Dict[torch.nn.Parameter, Set[str]] = {p: set() for p in names}
    for item in module.modules():
        for own in item.parameters(recurse=False):
            owners.get(own, set()).update(parts[id(item)])
    by_holder: Dict[str, List[Slot]] = {name: [] for name in ["", *chosen]}
    for parameter, name in names.items():
        owner = next(iter(owners[parameter])) if len(owners[parameter]) == 1 else ""
        slot = Slot(name, parameter, parameter.shape)
        if parameter.dtype != dtype:
            slot.own_dtype, slot.is_cast = parameter.dtype, parameter.requires_grad
        by_holder[owner].append(slot)
    holders: List[Holder] = []
    count = 0
    for owner, slots in by_holder.items():
        holder = Holder(owner, chosen.get(owner), [])
        for frozen in (False, True):
            part = [slot for slot in slots if slot.parameter.requires_grad != frozen]
            if part:
                name = (owner or "root") + (".frozen" if frozen else "")
                holder.units.append(Unit(count, name, part, frozen))
                count += 1
        if holder.units or owner == "":
            holders.append(holder)
    note_offsets(holders)
    return holders


def common_dtype(holders: List[Holder]) -> torch.dtype:
    """The dtype of all units."""
    slots = (slot for holder in holders for slot in holder.slots)
    plain = next((slot.parameter for slot in slots if slot.own_dtype is None), None)
    return torch.float32 if plain is None else plain.dtype


Seconds = Dict[Tuple[str, str], float]


#: A name in the plan has so many bytes at most.
_NAME_BYTES = 95


def uncompiled(name: str) -> str:
    """The name that a part of a module has, or had before torch.compile wrapped it or what it is in."""
    return re.sub(r"^_orig_mod(\.|$)|\._orig_mod\b", "", name)


def _short(name: str) -> str:
    """The uncompiled name, or the end of a long one with a number that stands for the rest."""
    data = (uncompiled(name) or name).encode()
    if len(data) <= _NAME_BYTES:
        return data.decode()
    number = f"{zlib.crc32(data):08x}.."
    return number + data[len(number) - _NAME_BYTES :].decode(errors="ignore")


def _describe_tensor(slot: Slot) -> Dict[str, Any]:
    """A run tells tensors apart by name and shape, and must not take other bits for these."""
    if slot.own_dtype is None or slot.is_cast:
        return {"name": _short(slot.name), "shape": list(slot.shape)}
    kind = f"{str(slot.own_dtype)[6:]} {list(slot.shape)}"
    return {"name": _short(f"{slot.name} ({kind})"), "shape": [slot.elems]}


def describe(
    holders: List[Holder], stages: List[Stage], seconds: Seconds, module: torch.nn.Module
) -> Dict[str, Any]:
    """The job's model.module. `seconds`: of the calls, by the stage's name and "forward" or
    "backward"; "copies": the part of a backward in which gradients are copied.

    The first stage is the root's: its params are there from the begin of the forward, and its
    gradients at the end of the backward. The last one uses nothing. It stands for what is computed
    after the last unit's forward and before its backward: the loss.
    """
    units = [
        {
            "name": _short(unit.name),
            "group": unit.group,
            "frozen": unit.frozen,
            "tensors": [_describe_tensor(slot) for slot in unit.slots],
        }
        for holder in holders
        for unit in holder.units
    ]
    described: List[Dict[str, Any]] = []
    for stage, goes_back in zip(stages, find_learning(stages)):
        backward = {
            "seconds": seconds.get((stage.name, "backward"), 0.0),
            "copy_seconds": seconds.get((stage.name, "copies"), 0.0),
            "adds": [stage.adds and not unit.frozen for unit in stage.holder.units],
        }
        described.append(
            {
                "name": _short(stage.name),
                "units": [unit.index for unit in stage.holder.units],
                "forward": {"seconds": seconds.get((stage.name, "forward"), 0.0)},
                "backward": backward if goes_back else None,
            }
        )
    last = described[-1]["units"]
    nothing = [False] * len(last)
    described.append(
        {
            "name": "loss",
            "units": last,
            "forward": {"seconds": 0.0, "reads": nothing},
            "backward": {
                "seconds": seconds.get(("loss", "backward"), 0.0),
                "reads": nothing,
                "adds": nothing,
            },
        }
    )
    kind = type(getattr(module, "_orig_mod", module))  # what torch.compile has wrapped
    return {"name": _short(kind.__name__), "units": units, "stages": described}


def list_alike(named: Iterable[Tuple[str, torch.Tensor]], units: Iterable[Unit]) -> str:
    """What all ranks must have alike: their parameters, and their units in the order of use. Each
    line says what one rank has, as a refusal names it."""
    lines = []
    for name, parameter in named:
        learns = "learns" if parameter.requires_grad else "frozen"
        what = f"{str(parameter.dtype)[6:]}, {list(parameter.shape)}, {learns}"
        lines.append(f'the parameter "{uncompiled(name)}" ({what})')
    for unit in units:
        what = f"{len(unit.slots)} parameters, group {unit.group}"
        lines.append(f'"{uncompiled(unit.name)}" ({what}) as unit {unit.index}')
    return "\n".join(lines)


def list_stages(holders: List[Holder], order: List[Stage]) -> List[Stage]:
    """All stages but the last: those of the recording after the root's, if it has parameters. A
    holder that the recording has not used comes after the one that is before it in the module."""
    stages = [Stage(holder) for holder in holders[:1] if holder.units] + order
    for number, holder in enumerate(holders[1:], 1):
        if not any(stage.holder is holder for stage in stages):
            before = [i for i, stage in enumerate(stages) if stage.holder is holders[number - 1]]
            stages.insert(before[0] + 1 if before else 0, Stage(holder))
    return stages


def find_learning(stages: List[Stage]) -> List[bool]:
    """For each stage, True if it or one before it learns: such a stage has a backward."""
    learns = [any(not unit.frozen for unit in stage.holder.units) for stage in stages]
    return [any(learns[: i + 1]) for i in range(len(stages))]


def note_offsets(holders: List[Holder]) -> None:
    """Places the parameters in their units: one after the other, at multiples of 128 elements."""
    for holder in holders:
        for unit in holder.units:
            end = 0
            for slot in unit.slots:
                slot.offset = -(-end // 128) * 128
                end = slot.offset + slot.elems
            unit.elems = end
