"""What a call could leave behind in a learner and in its process: a snapshot of everything, and a comparison."""

import copy
import random
import signal
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import cbnb

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_forward_hooks_with_kwargs",
)


def everything(learn: cbnb.Learner) -> dict[str, object]:
    """By name: models, modes, hooks, optimizer, random states, loaders, callbacks, history, attributes, functions of torch, the process."""
    modules, params = [*learn.model.modules()], [*learn.model.parameters()]
    loaders = [dl for dl in (learn.dls.train, learn.dls.valid) if dl is not None]
    plain = (int, float, str, bool, type(None))
    return dict(
        weights=copy.deepcopy(learn.model.state_dict()),
        objects=[id(p) for p in (*params, *learn.model.buffers())],
        gradients=[None if p.grad is None else p.grad.clone() for p in params],
        trained=[p.requires_grad for p in params],
        modes=[m.training for m in modules],
        hooks=[len(getattr(m, name)) for m in modules for name in HOOKS] + [len(p._backward_hooks or ()) for p in params],
        optimizer=copy.deepcopy(learn.opt.state_dict()) if learn.opt else None,
        random=(torch.get_rng_state(), random.getstate(), np.random.get_state()),
        generators=[g.get_state() for dl in loaders for g in (getattr(dl, "generator", None),) if g is not None],
        loaders=[(id(dl), {k: id(v) for k, v in vars(dl).items()}) for dl in loaders if hasattr(dl, "__dict__")],
        callbacks=[(id(cb), cb.learn is learn) for cb in learn.cbs],
        history=[(run.status, run.n_steps, len(run.epochs), copy.deepcopy(run.events)) for run in learn.recorder.history],
        attributes={k: v for k, v in vars(learn).items() if isinstance(v, plain)},
        loss={k: v for k, v in vars(learn.loss_func).items() if isinstance(v, plain)} if isinstance(learn.loss_func, nn.Module) else None,
        torch={k: id(v) for k, v in vars(F).items() if callable(v)},
        process=(torch.is_grad_enabled(), [id(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM)], len(warnings.filters)),
    )


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
