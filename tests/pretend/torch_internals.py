"""What makes a CPU build of torch accept tensors of `cuda:0`. It cannot be taken back in a process, so use one of its own.

Three parts: a guard of devices in Python takes the place of CUDA's in torch's table; the answers of torch's hooks for CUDA are
replaced in a copy of their table of virtual functions; and a boxed fallback runs the kernels.
"""

import ctypes
import re
from pathlib import Path
from typing import Any

import torch

VERSIONS = ("2.13",)  # of torch on which this was tried
KEPT: list[Any] = []  # what must not be freed while torch points to it

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def runs_here() -> str | None:
    """Return why the pretend GPU cannot run, or None."""
    if torch.cuda.is_available():
        return "there is a real GPU"
    if torch.version.cuda or torch.version.hip:
        return "this torch is built for a GPU"
    if not torch.__version__.startswith(VERSIONS):
        return f"torch {torch.__version__} was not tried: the pretend GPU needs torch {' or '.join(VERSIONS)}"
    return None


def retagged(t: torch.Tensor, kind: int) -> torch.Tensor:
    """Return the same memory as a tensor of another device: kind 1 is the CPU, 2 is CUDA. DLPack copies nothing."""
    t = t.detach() if t.requires_grad else t
    t = t.resolve_conj().resolve_neg() if t.is_conj() or t.is_neg() else t
    capsule = torch._C._to_dlpack(t)
    ctypes.c_int32.from_address(_pointer(capsule, b"dltensor") + 8).value = kind
    return torch._C._from_dlpack(capsule)


def _virtual_functions() -> list[str]:
    """The places in the table of CUDAHooksInterface, from the headers that come with torch. The first two are destructors."""
    names, folder = ["", ""], Path(torch.__file__).parent / "include" / "ATen" / "detail"
    for file in ("AcceleratorHooksInterface.h", "CUDAHooksInterface.h"):
        text = re.sub(r"//[^\n]*", "", (folder / file).read_text())
        for line in re.findall(r"(?:virtual\b[^;{]*|\n  [\w:&<>* ]+\([^;{]*\boverride)\s*[;{=]", text):
            name = re.search(r"([~\w]+)\s*\(", line)[1]
            if name[0] != "~" and name not in names:
                names.append(name)
    return names


ANSWERS: dict[str, tuple[Any, Any]] = dict(
    hasCUDA=(ctypes.c_bool, True),
    isBuilt=(ctypes.c_bool, True),
    isAvailable=(ctypes.c_bool, True),
    hasPrimaryContext=(ctypes.c_bool, True),
    init=(None, None),
    deviceCount=(ctypes.c_int8, 1),
    getCurrentDevice=(ctypes.c_int8, 0),
    setCurrentDevice=(None, None),
    exchangeDevice=(ctypes.c_int8, 0),
    maybeExchangeDevice=(ctypes.c_int8, 0),
    isPinnedPtr=(ctypes.c_bool, False),
)


def install(kernel: Any) -> None:
    """Let torch call `kernel(op, *args, **kwargs)` for each operation on tensors of CUDA. Once in a process."""
    if KEPT:
        return
    from torch._C._autograd import DeviceType

    class Guard(torch._C._acc.DeviceGuard):
        def type_(self) -> Any:
            return DeviceType.CUDA

    folder, word = Path(torch.__file__).parent / "lib", ctypes.c_void_p
    c10, torch_cpu = ctypes.CDLL(str(folder / "libc10.so")), ctypes.CDLL(str(folder / "libtorch_cpu.so"))
    guard = Guard()
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    guards = (word * 21).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1], guards[20] = guards[20], None  # from the slot of PrivateUse1 to that of CUDA

    get_hooks, allocator = torch_cpu._ZN2at6detail12getCUDAHooksEv, c10._ZN3c1015GetCPUAllocatorEv
    get_hooks.restype = allocator.restype = word
    hooks, names = word.from_address(get_hooks()), _virtual_functions()
    table = (word * (len(names) + 2))(*(word * (len(names) + 2)).from_address(hooks.value - 16))
    for name, (kind, value) in {**ANSWERS, "getPinnedMemoryAllocator": (word, allocator())}.items():
        answer = ctypes.CFUNCTYPE(kind, word, ctypes.c_int64)(lambda this, argument, value=value: value)
        table[2 + names.index(name)] = ctypes.cast(answer, word).value
        KEPT.append(answer)
    hooks.value = ctypes.addressof(table) + 16

    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(kernel, "CUDA")
    # a composite kernel that looks for a compiled one would not ask the fallback
    aten.impl("copy_", lambda *args, **kwargs: kernel(torch.ops.aten.copy_.default, *args, **kwargs), "CUDA")
    KEPT.extend([guard, table, everything, aten])
