"""The job of an engine, from its arguments and its config."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import torch

from .._errors import NoFit, WrongJob
from .._job import Path, path_text, to_json
from .._optimizers import AdamW, Adagrad, Lion, Muon, as_numbers, optimizer_block
from .._tasks import plan
from ._core import Bytes, list_drives
from ._units import Holder, common_dtype


def engine_job(
    config: Union[None, Path, Mapping[str, Any]],
    optimizer: Any,
    device: Bytes,
    host: Bytes,
    nvme: Union[None, Path, Sequence[Any]],
    run_dir: Path,
    commit_every: Optional[int],
) -> Dict[str, Any]:
    """All of an engine's job but the module, from the arguments of the same names."""
    job = _read(config)
    _put_optimizer(job, optimizer)
    job.setdefault("gradient_clipping", 0)  # as torch's own loop, which clips nothing
    _put(job, "tiers.device.budget", device)
    _put(job, "tiers.host.budget", host)
    _put(job, "tiers.nvme", list_drives(nvme))
    _put(job, "run.dir", path_text(run_dir, "run_dir"))
    _put(job, "run.commit_every", commit_every)
    if job["run"].get("commit_every") is None:  # buffers are saved before these commits
        job["run"]["commit_every"] = 50
    return job


#: What launchers tell processes that may be several ranks (src/comm/member.c).
_RANKS = (
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_ID",
    "MPI_LOCALNRANKS",
)


def check_fit(job: Mapping[str, Any], device: torch.device) -> None:
    """Refuses wrong keys, drives that cannot be used, and budgets that do not hold the states. Left
    to the opening of the run: what several ranks divide, which meet then; GPUs, since a plan makes
    one current; and budgets of a run that goes on, which has its space on the drives."""
    if device.type != "cpu" or any(name in os.environ for name in _RANKS):
        return
    try:
        plan(job, _is_quiet=True)
    except NoFit:
        if not os.path.isdir(os.path.join(job["run"]["dir"], "state")):
            raise


def _read(config: Union[None, Path, Mapping[str, Any]]) -> Dict[str, Any]:
    """A copy of the config, or what its file holds."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return _checked(json.loads(to_json(dict(config))), "config")
    path = path_text(config, "config (if it is no dict)")
    try:
        with open(path, encoding="utf-8") as file:
            return _checked(json.load(file), f"config: {path}")
    except (OSError, ValueError) as error:
        raise WrongJob(f"config: {path} cannot be read: {error}") from None


def _checked(job: Any, what: str) -> Dict[str, Any]:
    if not isinstance(job, dict):
        raise WrongJob(f"{what} is {type(job).__name__}, and must be an object of keys")
    optimizer = job.get("optimizer", {})
    if not isinstance(optimizer, dict) or not isinstance(optimizer.get("params", {}), dict):
        raise WrongJob(f'{what}: optimizer must be like {{"type": "AdamW", "params": {{...}}}}')
    return job


def _put(job: Dict[str, Any], path: str, value: Any) -> None:
    """Sets a key of the job that an argument stands for; the job may not have it too."""
    *parents, last = path.split(".")
    block = job
    for parent in parents:
        block = block.setdefault(parent, {})
        if not isinstance(block, dict):
            raise WrongJob(f"config: {parent} is {block!r}, and must be an object of keys")
    if value is None:
        return
    if last == "budget" and (isinstance(value, bool) or not isinstance(value, (int, str))):
        raise WrongJob(f'{parents[-1]} is {value!r}, and must be bytes or a text like "8GiB"')
    if last in block and block[last] != value:
        raise WrongJob(f"{path} is both an argument of the Engine and in its config: give it once")
    block[last] = value


def _put_optimizer(job: Dict[str, Any], optimizer: Any) -> None:
    """Sets the optimizer, which has a learning rate."""
    if optimizer is not None:
        if not isinstance(optimizer, (AdamW, Lion, Adagrad, Muon)):
            name = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
            raise WrongJob(
                f"optimizer is {name}, and must be sluice.AdamW(...), Lion, Adagrad or Muon: "
                "numbers alone, since the engine has the state"
            )
        job["optimizer"] = optimizer_block(optimizer)
    block = job.setdefault("optimizer", optimizer_block(AdamW()))
    params = block.get("params", {})
    if "lr" not in params:
        raise WrongJob("the optimizer has no learning rate: give optimizer.params.lr")
    known = ("lr", "betas", "eps", "weight_decay")
    as_numbers({k: params[k] for k in known if params.get(k, "auto") != "auto"}, "optimizer:")


def with_module(
    job: Mapping[str, Any], module: Dict[str, Any], holders: List[Holder], device: torch.device
) -> Dict[str, Any]:
    """The job with the module's description, and with blocks that agree with its dtypes."""
    dtype = common_dtype(holders)
    dtypes = {str(slot.parameter.dtype) for holder in holders for slot in holder.slots}
    blocks: Dict[str, Any] = {}
    for key, own in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        block = _block(job, key)
        if block.get("enabled") is True and len(dtypes) > 1:
            raise WrongJob(
                f"config has {key}.enabled, and the parameters of the module are "
                f"{' and '.join(sorted(dtypes))}, which the engine keeps: leave {key} out"
            )
        if block.get("enabled") is True and dtype != own:
            raise WrongJob(
                f"config has {key}.enabled, and the parameters of the module are {dtype}: call "
                f"module.to({own}) before the Engine, or leave {key} out"
            )
        if block or dtype == own:
            blocks[key] = {**block, "enabled": dtype == own}
    place = _block(job, "device")
    if place.setdefault("backend", device.type) != device.type:
        raise WrongJob(f'device.backend is "{place["backend"]}", and the module is on {device}')
    blocks["device"] = place
    optimizer = str(job["optimizer"].get("type", "")).lower()
    if dtype == torch.float32 and optimizer != "muon":
        # the parameters are the master weights: there is no second copy
        blocks["state"] = {"master": "split", **_block(job, "state")}
    return {**job, **blocks, "model": {"module": module}}


def _block(job: Mapping[str, Any], key: str) -> Dict[str, Any]:
    block: Optional[Any] = job.get(key)
    if block is not None and not isinstance(block, dict):
        raise WrongJob(f"config: {key} is {block!r}, and must be an object of keys")
    return dict(block or {})
