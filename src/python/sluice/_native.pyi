"""The extension's functions, for type checkers. See native.h."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

def version() -> str: ...
def end() -> None: ...
def set_data_directory(path: str) -> None: ...
def train(
    path: str,
    text: Optional[str],
    set: List[str],
    start_from: Optional[str],
    machine: Optional[str],
    fresh: bool,
    verbose: bool,
    on_step: Optional[Callable[..., Any]],
    on_evaluation: Optional[Callable[[int, float], Any]],
    watch: bool,
    share: Optional[Callable[[bytes, float], bytes]],
) -> Dict[str, Any]: ...
def plan(
    path: str,
    text: Optional[str],
    set: List[str],
    machine: Optional[str],
    ranks: int,
    ranks_per_host: int,
    verbose: int,
) -> str: ...
def probe(
    path: str,
    drives: List[str],
    backend: Optional[str],
    quick: bool,
    tiny: bool,
    on_progress: Optional[Callable[[str, float], Any]],
    watch: bool,
) -> None: ...
def generate(
    path: str,
    prompt: bytes,
    set: List[str],
    tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    context: int,
    stop_text: Optional[str],
    chat: bool,
    system: Optional[str],
    ignore_end: bool,
    on_text: Optional[Callable[[bytes], Any]],
    on_token: Optional[Callable[[int, bool], Any]],
    verbose: bool,
    watch: bool,
) -> Dict[str, Any]: ...
def evaluate(
    path: str,
    files: List[str],
    set: List[str],
    context: int,
    stride: int,
    batches: int,
    verbose: bool,
    watch: bool,
) -> Dict[str, Any]: ...
def export(
    path: str, directory: str, dtype: Optional[str], adapters: bool, force: bool
) -> None: ...

class Session:
    @classmethod
    def open(
        cls,
        path: str,
        text: Optional[str],
        set: List[str],
        start_from: Optional[str],
        machine: Optional[str],
        fresh: bool,
        verbose: bool,
        first: Optional[Callable[[int, int, int, int], None]] = ...,
        share: Optional[Callable[[bytes, float], bytes]] = ...,
        temporary: bool = ...,
        alike: Optional[str] = ...,
    ) -> Session: ...
    def info(self) -> Dict[str, Any]: ...
    def step(self) -> Dict[str, Any]: ...
    def evaluate(self) -> float: ...
    def commit(self) -> int: ...
    def broadcast(self, data: bytes) -> bytearray: ...
    def export(
        self, directory: str, dtype: Optional[str], adapters: bool, force: bool
    ) -> None: ...
    def module_begin(self, is_training: bool) -> None: ...
    def module_wait(self) -> Tuple[Any, ...]: ...
    def module_lend(self, addresses: Sequence[int]) -> None: ...
    def module_pause(self) -> bool: ...
    def module_done(self, loss: Optional[float]) -> None: ...
    def module_end(self) -> Dict[str, Any]: ...
    def module_abort(self, why: str) -> bool: ...
    def module_set_group(
        self, group: int, lr: float, weight_decay: float, beta1: float, beta2: float, eps: float
    ) -> None: ...
    def module_home(self, unit: int) -> Optional[Tuple[int, int]]: ...
    def memory(self, keeps_params: bool) -> Any: ...
    def set_failure(self, failure: bytes) -> None: ...
    def close(self) -> None: ...
    def is_open(self) -> bool: ...
