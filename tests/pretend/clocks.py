"""Streams and events of the pretend GPU: vector clocks say which work one stream, or the host, knows to be done.

Each stream counts its launches. `stream.clock[other]` is the last launch of another stream that this one has waited for, and
`device.host` is what the host has waited for. Two accesses of one memory are a race if neither knows of the other.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pretend.gpu import PretendGPU

LAG = 60  # launches until an event is complete by itself


def join(clock: Counter[int], other: Counter[int]) -> None:
    """Let `clock` know what `other` knows, in place. `clock |= other` does the same in many more steps, and each kernel asks for it."""
    for stream, launch in other.items():
        if launch > clock[stream]:
            clock[stream] = launch


class Current:
    """What is going on: the device that is pretended, and all its streams."""

    device: PretendGPU
    streams: weakref.WeakSet[Stream] = weakref.WeakSet()
    n_streams = 0


class Stream:
    """A queue of work. A copy to the CPU arrives once the host has waited for it."""

    def __init__(self, device: Any = None, priority: int = 0, **settings: Any):
        self.id, Current.n_streams = Current.n_streams, Current.n_streams + 1
        self.clock: Counter[int] = Counter()
        self.pending: list[tuple[int, torch.Tensor, torch.Tensor]] = []  # launch, destination, values
        self.device, self.device_index = torch.device("cuda", 0), 0
        Current.streams.add(self)

    stream_id = cuda_stream = property(lambda self: self.id)

    def launch(self) -> int:
        join(self.clock, Current.device.host)
        self.clock[self.id] += 1
        Current.device.launches += 1
        return self.clock[self.id]

    def wait_stream(self, other: Stream) -> None:
        join(self.clock, other.clock)

    def wait_event(self, event: Event) -> None:
        join(self.clock, event.clock)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        Current.device.wait("Stream.synchronize", self)

    def query(self) -> bool:
        return not self.pending

    def __enter__(self) -> None:
        self.before, Current.device.stream = Current.device.stream, self

    def __exit__(self, *error: Any) -> None:
        Current.device.stream = self.before


class Event:
    """A place in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False):
        self.clock: Counter[int] = Counter()
        self.at: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.clock, self.at = Counter((stream or Current.device.stream).clock), Current.device.launches

    def wait(self, stream: Stream | None = None) -> None:
        (stream or Current.device.stream).wait_event(self)

    def _is_old(self) -> bool:
        return self.at is not None and Current.device.launches - self.at > LAG

    def query(self) -> bool:
        done = self.at is None or self._is_old() or not self.clock - Current.device.host
        if done:
            Current.device.arrive(self.clock)
        return done

    def synchronize(self) -> None:
        if self.clock - Current.device.host:
            Current.device.note("old event" if self._is_old() else "wait", "Event.synchronize", 0)
        Current.device.arrive(self.clock)

    def elapsed_time(self, end: Event) -> float:
        return max(0, (end.at or 0) - (self.at or 0)) * 0.01
