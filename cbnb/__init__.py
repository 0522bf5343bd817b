__version__ = "0.1.0"
import gc as _gc

# What an import makes stays. A collection in between costs as much again as the import, as it looks at all objects of torch
_collects = _gc.isenabled()
_gc.disable()
try:
    from .all import *
finally:
    if _collects: _gc.enable()
