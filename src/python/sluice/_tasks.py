"""Whole tasks: what the commands of the same names do."""

from __future__ import annotations

import codecs
import json
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ._errors import WrongJob
from ._job import (
    Job,
    Overrides,
    Path,
    as_number,
    check_callable,
    check_count,
    check_text,
    is_unicode,
    job_arguments,
    optional_path,
    overrides_list,
    path_text,
    path_texts,
    watches_interrupt,
)
from ._launch import share_of_launcher
from ._load import native as _native
from ._process import guard
from ._session import Step


@dataclass(frozen=True)
class Training:
    """The result of sluice.train()."""

    step: int  #: the run is at this step, and it is committed
    steps_done: int  #: by this call
    tokens: int  #: by this call
    seconds: float
    loss: Optional[float]  #: nats per token, the mean of the last step; None: no step was made
    valid_loss: Optional[float]  #: nats per token, of the last evaluation; None: there was none
    resumed: bool  #: the run went on from a commit
    device_bytes: int  #: peak of this rank
    host_bytes: int  #: peak of this rank
    nvme_bytes: int  #: peak of this rank
    resident_bytes: int  #: the most memory that the process had so far


def train(
    job: Job,
    *,
    on_step: Optional[Callable[[Step], Any]] = None,
    on_evaluation: Optional[Callable[[int, float], Any]] = None,
    set: Overrides = (),
    start_from: Optional[Path] = None,
    machine: Optional[Path] = None,
    fresh: bool = False,
    verbose: bool = False,
) -> Training:
    """Trains to run.steps, with the evaluations and commits that the job asks for, as `sluice
    train`; goes on from the last commit of run.dir.

    job: a dict, or the path of a job file.
    on_step: called after each step, on rank 0. An exception of it stops the run as Ctrl-C does.
    on_evaluation: called with the step and the held-out loss, nats per token.
    The other arguments are those of sluice.open().

    Ctrl-C finishes the step, commits, and raises KeyboardInterrupt. The same call then resumes.
    """
    name, text = job_arguments(job)
    check_callable(on_step, "on_step")
    check_callable(on_evaluation, "on_evaluation")

    def step_call(*values: Any) -> None:
        on_step(Step(*values))  # type: ignore[misc]

    guard()
    made = _native.train(
        path=name,
        text=text,
        set=overrides_list(set),
        start_from=optional_path(start_from, "start_from"),
        machine=optional_path(machine, "machine"),
        fresh=fresh,
        verbose=verbose,
        on_step=step_call if on_step else None,
        on_evaluation=on_evaluation,
        watch=watches_interrupt(),
        share=share_of_launcher(),
    )
    return Training(**made)


@dataclass(frozen=True)
class Tiers:
    """Bytes of each tier."""

    device: int
    host: int
    nvme: int


@dataclass(frozen=True)
class Plan:
    """What a run would need and how fast it would be. Figures are of each rank, but tokens and
    speed are of all ranks. None: not known."""

    model: str
    parameters: int
    tokens_per_step: int
    world_size: int
    zero_stage: int
    order: str
    update: str
    peak_bytes: Tiers
    budget_bytes: Tiers
    step_seconds: Optional[float]
    tokens_per_second: Optional[float]
    bound_seconds: float  #: work of the busiest resource
    bottleneck: str  #: the lane that limits the step
    busiest_resource: str
    reasons: List[str]  #: why each state lies where it lies
    #: All figures, as `sluice plan --json` prints them: bytes, seconds, bytes per second.
    figures: Dict[str, Any] = field(repr=False)

    @classmethod
    def from_json(cls, figures: Dict[str, Any]) -> "Plan":
        names = [name for name in cls.__dataclass_fields__ if name != "figures"]
        values = {name: figures[name] for name in names}
        for name in ("peak_bytes", "budget_bytes"):
            values[name] = Tiers(**values[name])
        return cls(figures=figures, **values)


_RANKS_MOST = (1 << 32) - 1  # the extension takes 32 bits


def plan(
    job: Job,
    *,
    ranks: int = 0,
    ranks_per_host: int = 0,
    set: Overrides = (),
    machine: Optional[Path] = None,
    verbose: bool = False,
    _is_quiet: bool = False,
) -> Plan:
    """Says where a job's states go, what it needs and how long a step takes. Touches no drive and
    takes no memory of a run. Raises NoFit if the job does not fit.

    ranks: how many to plan for; 0: 1, or all of a described machine.
    ranks_per_host: ranks that share a host; 0: all.
    machine: a machine.json of sluice.probe(), or the name of a described machine.
    """
    name, text = job_arguments(job)
    check_count(ranks, "ranks", _RANKS_MOST)
    check_count(ranks_per_host, "ranks_per_host", _RANKS_MOST)
    json_text = _native.plan(
        path=name,
        text=text,
        set=overrides_list(set),
        machine=optional_path(machine, "machine"),
        ranks=ranks,
        ranks_per_host=ranks_per_host,
        verbose=-1 if _is_quiet else int(verbose),
    )
    return Plan.from_json(json.loads(json_text))


def probe(
    path: Optional[Path] = None,
    *,
    drives: Sequence[Path] = (),
    backend: Optional[str] = None,
    quick: bool = False,
    on_progress: Optional[Callable[[str, float], Any]] = None,
    _tiny: bool = False,
) -> Mapping[str, Any]:
    """Measures this machine: memory, products, copies, drives. Takes under 3 minutes, with `quick`
    under 30 s. Returns what machine.json holds: rates in bytes, flops or elements per second.

    path: where machine.json is written, for the argument `machine` of plans and runs; None: nowhere.
    drives: directories on the drives to measure; none: the working directory.
    on_progress: called from another thread with what is measured and the share that is done.
    """
    check_callable(on_progress, "on_progress")
    check_text(backend, "backend")
    directories = path_texts(drives, "drives")
    guard()
    with tempfile.TemporaryDirectory() as scratch:
        target = os.path.join(scratch, "machine.json") if path is None else path_text(path, "path")
        _native.probe(
            path=target,
            drives=directories,
            backend=backend,
            quick=quick,
            tiny=_tiny,
            on_progress=on_progress,
            watch=watches_interrupt(),
        )
        with open(target, encoding="utf-8") as file:
            figures: Mapping[str, Any] = json.load(file)
    return figures


@dataclass(frozen=True)
class Generation:
    """The result of sluice.generate()."""

    text: str  #: the prompt and what follows; in a chat the answer alone
    ids: List[int]  #: generated tokens
    prompt_ids: List[int]
    ended_by: str  #: "tokens", "end" or "stop_text"
    context: int  #: positions that the model could see
    prefill_seconds: float  #: reading the prompt
    decode_seconds: float  #: all that follows


def generate(
    model: Path,
    prompt: str = "\n",
    *,
    tokens: int = 256,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 1,
    stop_text: Optional[str] = None,
    context: int = 0,
    chat: bool = False,
    system: Optional[str] = None,
    ignore_end: bool = False,
    on_text: Optional[Callable[[str], Any]] = None,
    set: Overrides = (),
    verbose: bool = False,
) -> Generation:
    """Continues a text with a trained model: a run directory, or a Hugging Face checkpoint.

    tokens: at most so many. temperature 0 takes the likeliest token. top_k 0 and top_p 1: all.
    chat: the prompt is a user's message, with `system` before it.
    context: most positions that the model sees; 0: as many as the text takes.
    on_text: called with each piece of text as it is generated.
    The same seed gives the same text on the same machine.
    """
    pieces: List[str] = []
    ids: List[int] = []
    prompt_ids: List[int] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(text: str) -> None:
        if text:
            pieces.append(text)
            if on_text:
                on_text(text)

    check_callable(on_text, "on_text")
    if not isinstance(prompt, str):
        raise WrongJob(f"prompt is {type(prompt).__name__}, and must be a text")
    if not is_unicode(prompt):
        raise WrongJob(f"prompt is {prompt!r}, and must be Unicode")
    check_text(stop_text, "stop_text")
    check_text(system, "system")
    counts = {"tokens": tokens, "top_k": top_k, "seed": seed, "context": context}
    for what, count in counts.items():
        check_count(count, what)
    guard()
    made = _native.generate(
        path=path_text(model, "model"),
        prompt=prompt.encode("utf-8"),
        set=overrides_list(set),
        tokens=tokens,
        temperature=as_number(temperature, "temperature"),
        top_k=top_k,
        top_p=as_number(top_p, "top_p"),
        seed=seed,
        context=context,
        stop_text=stop_text,
        chat=chat,
        system=system,
        ignore_end=ignore_end,
        on_text=lambda piece: show(decoder.decode(piece)),
        on_token=lambda token, is_prompt: (prompt_ids if is_prompt else ids).append(token),
        verbose=verbose,
        watch=watches_interrupt(),
    )
    show(decoder.decode(b"", True))
    return Generation(
        text="".join(pieces),
        ids=ids,
        prompt_ids=prompt_ids,
        ended_by=made["ended_by"],
        context=made["context"],
        prefill_seconds=made["prefill_seconds"],
        decode_seconds=made["decode_seconds"],
    )


@dataclass(frozen=True)
class Evaluation:
    """The result of sluice.evaluate()."""

    loss: float  #: nats per token
    perplexity: float  #: e^loss
    bits_per_byte: Optional[float]  #: None: the tokens' bytes are not known
    tokens: int  #: predicted
    seconds: float


def evaluate(
    model: Path,
    files: Sequence[Path],
    *,
    context: int = 0,
    stride: int = 0,
    batches: int = 0,
    set: Overrides = (),
    verbose: bool = False,
) -> Evaluation:
    """The loss of a trained model, a run directory or a Hugging Face checkpoint, on files.

    context: most tokens from which one is predicted; 0: model.seq_length.
    stride: tokens between windows; 0: the context.
    batches: at most so many micro-batches; 0: all.
    """
    for what, count in {"context": context, "stride": stride, "batches": batches}.items():
        check_count(count, what)
    guard()
    return Evaluation(
        **_native.evaluate(
            path=path_text(model, "model"),
            files=path_texts(files, "files"),
            set=overrides_list(set),
            context=context,
            stride=stride,
            batches=batches,
            verbose=verbose,
            watch=watches_interrupt(),
        )
    )


def export(
    run: Path,
    directory: Path,
    *,
    dtype: Optional[str] = None,
    adapters: bool = False,
    force: bool = False,
) -> None:
    """Writes the last commit of a run that is not open as a Hugging Face checkpoint.

    dtype: "fp32", "bf16" or "fp16"; None: the run's working dtype.
    adapters: for a run with train.lora, only the adapters, as PEFT has them.
    force: replaces files in a directory that is not empty.
    """
    check_text(dtype, "dtype")
    guard()
    run_path, target = path_text(run, "run"), path_text(directory, "directory")
    _native.export(run_path, target, dtype, adapters, force)
