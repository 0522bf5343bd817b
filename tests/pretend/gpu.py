"""A GPU that is not there: plain tensors of `cuda:0` over memory of the CPU, with streams, events, a memory limit and a random state.

    with PretendGPU() as gpu:        # torch.cuda.is_available() is True in this block
        ...                          # train
    gpu.log                          # each wait of the host for the device: kind, operation, bytes, stack
    gpu.faults                       # races between streams, tensors of two devices in one operation, ...

Autograd, autocast, views, optimizers, GradScaler and torch.save see real tensors of CUDA. Each kernel runs on aliases of the
tensors that belong to the CPU, about a millisecond each. An asynchronous copy to the CPU shows nan until the host has waited for it.
It has no Triton, no graphs, no NCCL and one device.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections import Counter
from typing import Any
from unittest import mock

import torch

from pretend.clocks import Current, Event, Stream, join
from pretend.torch_internals import install, retagged

CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
VIEWS = {"as_strided", "view", "_reshape_alias", "unfold", "set_", "alias"}  # their kernels touch no data
WAITS = set("_local_scalar_dense nonzero masked_select equal unique_dim unique_consecutive _unique _unique2 bincount "
            "repeat_interleave is_set_to".split())  # fmt: skip
MIXES = {"copy_", "index", "index_put_", "_index_put_impl_", "_unsafe_index"}  # take tensors of the CPU, too


_short = functools.cache(os.path.relpath)


class Block(bytearray):
    """Memory of the device."""

    def __init__(self, n: int):
        super().__init__(n)
        self.n = n
        Current.device.live += n
        Current.device.peak = max(Current.device.peak, Current.device.live)

    def __del__(self) -> None:
        Current.device.live -= self.n


class Use:
    """Who has touched a piece of memory: the last writer, the readers since, and the streams that may."""

    def __init__(self, owner: Stream):
        self.owner, self.streams = owner, {owner.id}
        self.written: tuple[int, int] | None = None
        self.read: dict[int, int] = {}


class PretendGPU:
    """The device. Only one at a time; leaving the block restores `torch.cuda`."""

    def __init__(self, limit: int = 2**33):
        self.limit = limit

    def __enter__(self) -> PretendGPU:
        Current.device, Current.n_streams = self, 0
        self.live = self.peak = self.launches = 0
        self.host: Counter[int] = Counter()
        self.ops: Counter[str] = Counter()
        self.log: list[tuple[str, str, int, list[str]]] = []
        self.faults: list[tuple[str, list[str]]] = []
        self.pinned: dict[int, Any] = {}  # address -> storage
        self.flying: list[tuple[torch.Tensor, torch.Tensor]] = []  # pinned sources of copies under way, and what they held
        self.uses: dict[int, Use] = {}
        self.sync_mode = 0
        self.default = self.stream = Stream()
        self.generator, self.undo = torch.Generator(), contextlib.ExitStack()
        install(run)
        _patch(self)
        return self

    def __exit__(self, *error: Any) -> None:
        self.check_pinned()
        self.undo.close()

    # -- what it finds

    def where(self) -> list[str]:
        """The twelve innermost calls outside of torch. `traceback` would read their lines from the files, and is asked thousands of times."""
        frame, found = sys._getframe(1), []
        while frame and len(found) < 12:
            code = frame.f_code
            if f"{os.sep}pretend{os.sep}" not in code.co_filename and f"{os.sep}torch{os.sep}" not in code.co_filename:
                found.append(f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        return found[::-1]

    def note(self, kind: str, what: str, n: int) -> None:
        self.log.append((kind, what, n, self.where()))
        is_seen = kind in ("wait", "h2d-sync") and not what.startswith(("Event", "Stream", "cuda"))  # as torch's mode sees it
        if self.sync_mode and is_seen:
            if self.sync_mode == 2:
                raise RuntimeError("called a synchronizing CUDA operation")
            warnings.warn("called a synchronizing CUDA operation", stacklevel=4)

    def fault(self, text: str) -> None:
        self.faults.append((text, self.where()))

    def waits(self) -> list[tuple[str, str, int, list[str]]]:
        """The waits of the host so far."""
        return [entry for entry in self.log if entry[0] in ("wait", "h2d-sync")]

    # -- time

    def arrive(self, clock: Counter[int]) -> None:
        """The host knows that everything up to `clock` is done."""
        join(self.host, clock)
        for stream in list(Current.streams):
            here = [copy for copy in stream.pending if copy[0] <= self.host[stream.id]]
            stream.pending = [copy for copy in stream.pending if copy[0] > self.host[stream.id]]
            for _, destination, value in here:
                destination.copy_(value)

    def wait(self, what: str, stream: Stream | None, n: int = 0) -> None:
        self.note("wait", what, n)
        for one in [stream] if stream else list(Current.streams):
            self.arrive(one.clock)
        if stream is None:
            self.check_pinned()

    def check_pinned(self) -> None:
        for source, copy in self.flying:
            if not torch.equal(source, copy):
                self.fault("pinned memory was changed while a copy from it could be under way")
        self.flying = []

    def touch(self, t: torch.Tensor, writes: bool) -> None:
        """The current stream reads or writes the memory of `t`: is another one still at it?"""
        stream = self.stream
        use = self.uses.setdefault(t.untyped_storage().data_ptr(), Use(stream))
        before = [("written", use.written)] if use.written else []
        before += [("read", reader) for reader in use.read.items()] if writes else []
        for what, (other, launch) in before:
            if stream.clock[other] < launch:
                self.fault(f"stream {stream.id} {'writes' if writes else 'reads'} what stream {other} may not yet have {what}")
        if writes:
            use.written, use.read = (stream.id, stream.clock[stream.id]), {}
        else:
            use.read[stream.id] = stream.clock[stream.id]
        if stream.id not in use.streams:
            self.fault(f"stream {stream.id} uses memory of stream {use.owner.id} without record_stream")
            use.streams.add(stream.id)

    # -- memory

    def new(self, t: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the device with the contents of one of the CPU."""
        if self.live + t.nbytes > self.limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {t.nbytes} bytes")
        if not t.numel():
            return retagged(t, 2)
        is_bool = t.dtype is torch.bool
        base = torch.frombuffer(Block(t.numel() * t.element_size()), dtype=torch.uint8 if is_bool else t.dtype)
        strides = torch.empty_like(t, memory_format=torch.preserve_format).stride()
        out = (base.view(torch.bool) if is_bool else base).as_strided(t.shape, strides).copy_(t.resolve_conj().resolve_neg())
        self.uses.pop(out.untyped_storage().data_ptr(), None)
        return retagged(out, 2)

    def is_pinned(self, t: torch.Tensor, device: Any = None) -> bool:
        return t.untyped_storage().data_ptr() in self.pinned

    def pin(self, t: torch.Tensor, device: Any = None) -> torch.Tensor:
        t = t.clone()
        self.pinned[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t


# -- kernels


class About:
    """What the schema of an operation says: its name, the arguments that it writes, and whether it draws random numbers."""

    known: dict[Any, About] = {}

    def __init__(self, op: Any):
        arguments = op._schema.arguments
        self.name = op._schema.name.partition("::")[2]
        self.writes = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        self.outs = {a.name for a, writes in zip(arguments, self.writes) if writes and a.kwarg_only}
        self.draws = torch.Tag.nondeterministic_seeded in op.tags

    @classmethod
    def of(cls, op: Any) -> About:
        if op not in cls.known:
            cls.known[op] = cls(op)
        return cls.known[op]


def _indexes_by_mask(name: str, args: tuple[Any, ...]) -> bool:
    if not name.startswith(("index", "_index")) or len(args) < 2 or not isinstance(args[1], (list, tuple)):
        return False
    return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])


class Call:
    """One call of a kernel: aliases of its tensors on the CPU, and the way back."""

    def __init__(self, gpu: PretendGPU, about: About):
        self.gpu, self.about = gpu, about
        self.sources: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}  # id of an alias -> alias, tensor, is `out=`
        self.on_cpu: list[torch.Tensor] = []

    def alias(self, x: Any, writes: bool = False, out: bool = False) -> Any:
        if isinstance(x, (list, tuple)):
            return [self.alias(y, writes, out) for y in x]
        if not isinstance(x, torch.Tensor):
            return torch.device("cpu") if isinstance(x, torch.device) else x
        if not x.is_cuda:
            self.on_cpu.append(x)
            return x
        self.gpu.touch(x, writes)
        empty = torch.empty(0, dtype=x.dtype) if out else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if not x.numel() else None
        mine = retagged(x, 1) if empty is None else empty
        self.sources[id(mine)] = (mine, x, out)
        return mine

    def put_outs(self) -> None:
        for mine, x, out in self.sources.values():
            if mine.shape != x.shape:
                torch.ops.aten.set_.source_Tensor.redispatch(CPU, x, self.gpu.new(mine))  # an `out=` that was resized
            elif out and x.numel():
                retagged(x, 1).copy_(mine)

    def back(self, t: Any) -> Any:
        if isinstance(t, (list, tuple)):
            return type(t)(map(self.back, t))
        if not isinstance(t, torch.Tensor):
            return t
        if id(t) in self.sources:
            return self.sources[id(t)][1]
        new = self.gpu.new(t)
        if new.numel():
            self.gpu.touch(new, True)
        return new


@contextlib.contextmanager
def _random_numbers_of(gpu: PretendGPU, draws: bool) -> Any:
    if not draws:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(gpu.generator.get_state())
    try:
        yield
    finally:
        gpu.generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run one kernel."""
    gpu, about = Current.device, About.of(op)
    if about.name in VIEWS:
        return op.redispatch(CPU, *args, **kwargs)
    gpu.ops[about.name] += 1
    gpu.stream.launch()
    if about.name == "copy_" and args[0].device != args[1].device:
        return _copy(gpu, *args, **kwargs)
    call = Call(gpu, about)
    mine = [call.alias(a, writes) for a, writes in zip(args, about.writes)]
    named = {k: call.alias(v, k in about.outs, k in about.outs) for k, v in kwargs.items()}
    if about.name in WAITS or _indexes_by_mask(about.name, args):
        gpu.wait(about.name, gpu.stream)
    if any(t.dim() for t in call.on_cpu):
        if about.name not in MIXES:
            raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {op}")
        gpu.note("h2d-sync", about.name, sum(t.nbytes for t in call.on_cpu))
    with _random_numbers_of(gpu, about.draws):
        result = op(*mine, **named)
    call.put_outs()
    return call.back(result)


def _copy(gpu: PretendGPU, destination: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between the CPU and the device."""
    stream, n = gpu.stream, source.nbytes
    if destination.is_cuda:
        gpu.touch(destination, True)
        retagged(destination, 1).copy_(source)
        pinned = gpu.is_pinned(source)
        gpu.note("h2d-sync" if not non_blocking else "h2d-async" if pinned else "h2d-pageable", "copy_", n)
        if not non_blocking:
            gpu.arrive(stream.clock)
        elif pinned:
            gpu.flying.append((source.detach(), source.detach().clone()))
        return destination
    value = retagged(source, 1)
    gpu.touch(source, False)
    if non_blocking and gpu.is_pinned(destination):
        destination.fill_(float("nan") if destination.is_floating_point() else 77)
        stream.pending.append((stream.clock[stream.id], destination, value.clone()))
        gpu.note("d2h-async", "copy_", n)
        return destination
    gpu.wait("copy to the CPU", stream, n)
    return destination.copy_(value)


# -- the names of torch.cuda


class Properties:
    name, major, minor, multi_processor_count = "Pretend", 8, 0, 108

    def __init__(self, total_memory: int):
        self.total_memory = total_memory


def _fraction(device: Any = None) -> float:
    torch.cuda._utils._get_device_index("cuda:0" if device is None else device)  # refuses what torch refuses
    return 1.0


def _patch(gpu: PretendGPU) -> None:
    """Put the device behind `torch.cuda`, until `gpu.undo` is closed."""
    storage, real_empty, real_clone = torch.storage._StorageBase, torch.empty, torch.storage._StorageBase.clone
    modes = dict(default=0, warn=1, error=2)

    def empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        t = real_empty(*args, **kwargs)
        return gpu.pin(t) if pin_memory else t

    def record_stream(t: torch.Tensor, stream: Stream) -> None:
        gpu.uses.setdefault(t.untyped_storage().data_ptr(), Use(gpu.stream)).streams.add(stream.id)

    def flat(s: Any, device: Any) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=device).set_(s)

    def moved(s: Any, device: Any = None, non_blocking: bool = False) -> Any:
        device = torch.device(device)
        return s if device.type == s.device.type else flat(s, s.device).to(device).untyped_storage()

    def cloned(s: Any) -> Any:
        return flat(s, "cuda").clone().untyped_storage() if s.device.type == "cuda" else real_clone(s)

    cuda = dict(
        _lazy_init=lambda: None,
        _is_in_bad_fork=lambda: False,
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda device: None,
        synchronize=lambda device=None: gpu.wait("cuda.synchronize", None),
        Stream=Stream,
        Event=Event,
        stream=lambda stream: stream or contextlib.nullcontext(),
        set_stream=lambda stream: setattr(gpu, "stream", stream),
        current_stream=lambda device=None: gpu.stream,
        default_stream=lambda device=None: gpu.default,
        is_current_stream_capturing=lambda: False,
        memory_allocated=lambda device=None: gpu.live,
        memory_reserved=lambda device=None: gpu.live,
        max_memory_allocated=lambda device=None: gpu.peak,
        reset_peak_memory_stats=lambda device=None: setattr(gpu, "peak", gpu.live),
        mem_get_info=lambda device=None: (gpu.limit - gpu.live, gpu.limit),
        get_per_process_memory_fraction=_fraction,
        empty_cache=lambda: None,
        is_bf16_supported=lambda including_emulation=True: True,
        get_device_capability=lambda device=None: (8, 0),
        get_device_name=lambda device=None: Properties.name,
        get_device_properties=lambda device=None: Properties(gpu.limit),
        manual_seed=gpu.generator.manual_seed,
        manual_seed_all=gpu.generator.manual_seed,
        get_rng_state=lambda device=0: gpu.generator.get_state(),
        set_rng_state=lambda state, device=0: gpu.generator.set_state(state),
        get_rng_state_all=lambda: [gpu.generator.get_state()],
        set_rng_state_all=lambda states: gpu.generator.set_state(states[0]),
        set_sync_debug_mode=lambda mode: setattr(gpu, "sync_mode", modes.get(mode, mode)),
        get_sync_debug_mode=lambda: gpu.sync_mode,
    )
    accelerator = dict(
        is_available=lambda: True,
        current_accelerator=lambda *args, **kwargs: torch.device("cuda"),
        device_count=lambda: 1,
        current_device_index=lambda: 0,
    )
    storages = dict(to=moved, clone=cloned, cpu=lambda s: moved(s, "cpu"), cuda=lambda s, device=None, non_blocking=False: moved(s, "cuda"))
    tensors = dict(
        pin_memory=lambda t, device=None: gpu.pin(t), record_stream=record_stream, is_pinned=lambda t, device=None: gpu.is_pinned(t)
    )
    places = [
        (torch.cuda, cuda),
        (torch.accelerator, accelerator),
        (torch, dict(empty=empty)),
        (storage, storages),
        (torch.Tensor, tensors),
    ]
    for place, names in places:
        for name, value in names.items():
            if hasattr(place, name):
                gpu.undo.enter_context(mock.patch.object(place, name, value))
