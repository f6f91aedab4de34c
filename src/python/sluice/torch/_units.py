"""Which parameters of a module are fetched and released together.

A unit is a module with parameters, usually one of the repeated blocks. Everything that belongs to
no such module, or to several of them (tied weights), is in the root unit. The parameters of a unit
that do not learn are a unit of their own beside those that learn: two units, one module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

import torch

from .._errors import WrongJob

#: Names of modules, or a function that tells for a name and a module if it is a unit.
Policy = Union[None, Sequence[str], Callable[[str, torch.nn.Module], bool]]

#: A module outside of blocks with so many elements is a unit of its own, if it is called once.
_LARGE_ELEMS = 1 << 20


@dataclass(eq=False)
class Slot:
    """One parameter: its first name, and every name that it has in the module."""

    name: str
    parameter: torch.nn.Parameter
    shape: torch.Size
    offset: int = 0  #: in its unit's flat vector, in elements
    placeholder: Optional[torch.Tensor] = None  #: stands for the values while they are elsewhere

    @property
    def elems(self) -> int:
        return self.shape.numel()


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


def _has_parameters(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _blocks(module: torch.nn.Module) -> Dict[str, torch.nn.Module]:
    """The children of the outermost lists and sequences that have at least two with parameters."""
    found: Dict[str, torch.nn.Module] = {}

    def visit(name: str, item: torch.nn.Module) -> None:
        prefix = f"{name}." if name else ""
        children = [(prefix + key, child) for key, child in item.named_children()]
        if isinstance(item, (torch.nn.ModuleList, torch.nn.Sequential)):
            blocks = [pair for pair in children if _has_parameters(pair[1])]
            if len(blocks) >= 2:
                found.update(blocks)
                return
        for key, child in children:
            visit(key, child)

    visit("", module)
    return found


def _large_leaves(
    module: torch.nn.Module, taken: Dict[str, torch.nn.Module]
) -> Dict[str, torch.nn.Module]:
    """Modules without children, outside of blocks, whose own parameters are large."""
    found = {}
    for name, item in module.named_modules():
        inside = any(name == block or name.startswith(block + ".") for block in taken)
        elems = sum(p.numel() for p in item.parameters(recurse=False))
        if name and not inside and not any(True for _ in item.children()) and elems > _LARGE_ELEMS:
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
    "OptimizedModule": "torch.compile is not supported",
    "DataParallel": "one process has one device",
    "DistributedDataParallel": "the engine itself averages over the ranks",
    "FullyShardedDataParallel": "the engine itself partitions over the ranks",
}


def check_kind(module: torch.nn.Module) -> None:
    for name, item in module.named_modules():
        kind, at = type(item).__name__, f' "{name}"' if name else ""
        if kind in _WRAPPERS:
            raise WrongJob(f"the module{at} is a {kind}: {_WRAPPERS[kind]}, so give what is inside")
        if getattr(item, "_compiled_call_impl", None) is not None:
            raise WrongJob(f"the module{at} is compiled: {_WRAPPERS['OptimizedModule']}")
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


def _check(name: str, parameter: torch.Tensor, first: torch.Tensor) -> None:
    dtype = first.dtype
    check_plain(name, parameter)
    if parameter.device != first.device:
        raise WrongJob(
            f'the parameter "{name}" is on {parameter.device} and others are on {first.device}: a '
            "module has one device"
        )
    if parameter.dtype != dtype:
        raise WrongJob(
            f'the parameter "{name}" is {parameter.dtype} and others are {dtype}: a module has one '
            "dtype, so convert it (module.to(dtype))"
        )


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make_holders(module: torch.nn.Module, policy: Policy) -> List[Holder]:
    """All units of the module: the root first, then one holder for each module of the policy."""
    if not isinstance(module, torch.nn.Module):
        raise WrongJob(f"the first argument is {type(module).__name__}, and must be a torch module")
    if not _has_parameters(module):
        raise WrongJob(f"the module {type(module).__name__} has no parameters to train")
    check_kind(module)
    first = next(module.parameters())
    if first.dtype not in _DTYPES:
        raise WrongJob(f"parameters are {first.dtype}, and must be float32, bfloat16 or float16")
    if first.device.type not in ("cpu", "cuda"):
        raise WrongJob(
            f"the module is on {first.device}, and must be on the CPU or a CUDA device; "
            "sluice.torch.init builds modules without values"
        )
    for name, parameter in module.named_parameters():
        _check(name, parameter, first)
    chosen = choose_modules(module, policy)
    owners: Dict[int, Set[str]] = {}
    names: Dict[int, str] = {}
    items: Dict[int, torch.nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner = next((c for c in chosen if name.startswith(c + ".")), "")
        owners.setdefault(id(parameter), set()).add(owner)
        names.setdefault(id(parameter), name)
        items.setdefault(id(parameter), parameter)
    if not any(p.requires_grad for p in items.values()):
        raise WrongJob("no parameter of the module learns: set requires_grad of some of them")
    by_holder: Dict[str, List[Slot]] = {name: [] for name in ["", *chosen]}
    for key, parameter in items.items():
        owner = next(iter(owners[key])) if len(owners[key]) == 1 else ""
        by_holder[owner].append(Slot(names[key], parameter, parameter.shape))
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


Seconds = Dict[Tuple[str, str], float]


def describe(
    holders: List[Holder], order: List[Holder], seconds: Seconds, name: str
) -> Dict[str, Any]:
    """The job's model.module. `order`: the holders but the root, as the forward calls them.
    `seconds`: of the calls, by the holder's name and "forward" or "backward"; "copies": the part of
    a backward in which gradients are copied.

    The first stage is the root's: its params are there from the begin of the forward, and its
    gradients at the end of the backward. The last one uses nothing. It stands for what is computed
    after the last unit's forward and before its backward: the loss.
    """
    units = [
        {
            "name": unit.name,
            "group": unit.group,
            "frozen": unit.frozen,
            "tensors": [{"name": s.name, "shape": list(s.shape)} for s in unit.slots],
        }
        for holder in holders
        for unit in holder.units
    ]
    stages: List[Dict[str, Any]] = []
    holders_of = list_stages(holders, order)
    for holder, goes_back in zip(holders_of, find_learning(holders_of)):
        stages.append(
            {
                "name": holder.name or "root",
                "units": [unit.index for unit in holder.units],
                "forward": {"seconds": seconds.get((holder.name, "forward"), 0.0)},
                "backward": {
                    "seconds": seconds.get((holder.name, "backward"), 0.0),
                    "copy_seconds": seconds.get((holder.name, "copies"), 0.0),
                }
                if goes_back
                else None,
            }
        )
    last = stages[-1]["units"]
    nothing = [False] * len(last)
    stages.append(
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
    return {"name": name, "units": units, "stages": stages}


def list_stages(holders: List[Holder], order: List[Holder]) -> List[Holder]:
    """The holders of the stages but the last: the root, if it has parameters, and the others."""
    return [holder for holder in holders[:1] if holder.units] + order


def find_learning(stages: List[Holder]) -> List[bool]:
    """For each stage, True if it or one before it learns: such a stage has a backward."""
    learns = [any(not unit.frozen for unit in holder.units) for holder in stages]
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
