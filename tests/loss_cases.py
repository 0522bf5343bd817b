"""Losses whose batches do not count alike, each with data: the loss of the whole set, and what a learner makes of it cut into batches.

`python loss_cases.py FILE` writes what one of several processes has found, for `test_loss_weights.py`.
"""

import json
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cbnb.all as cbnb

N, T, D, C = 67, 5, 3, 4  # items, tokens of an item, inputs of a token, classes
CUTS = {"1": 1, "7": 7, "8": 8, "32": 32, "all": N, "ragged": [30, 1, 5, 31]}
WEIGHTS = torch.tensor([1.0, 2.0, 5.0, 20.0], dtype=torch.float64)


class Net(nn.Module):
    """Scores of shape (items, classes), or (items, tokens, classes) if `tokens` is set, changed by `then`"""

    def __init__(self, tokens: bool, then: Any):
        super().__init__()
        torch.manual_seed(1)
        self.line, self.tokens, self.then = nn.Linear(D, C, dtype=torch.float64), tokens, then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.line(x if self.tokens else x.mean(1)))


@dataclass
class Case:
    loss_func: Any
    targets: tuple
    tokens: bool = False
    then: Any = staticmethod(lambda scores: scores)
    batch_weight: Any = None

    def net(self) -> Net:
        return Net(self.tokens, self.then)


g = torch.Generator().manual_seed(0)
X = torch.rand(N, T, D, generator=g, dtype=torch.float64)
Y = torch.randint(0, C, (N,), generator=g)
Y[torch.rand(N, generator=g) < 0.7] = 0  # the weights differ much from batch to batch
WORDS = torch.randint(0, C, (N, T), generator=g)
WORDS[torch.arange(T) >= torch.randint(0, T + 1, (N, 1), generator=g)] = -100  # some items are padding as a whole
FLAGS = (torch.rand(N, C, generator=g) < 0.3).double()
VALUES = torch.rand(N, C, generator=g, dtype=torch.float64) * 3
PROBS = VALUES.softmax(1)
SIGNS = torch.where(Y > 0, 1.0, -1.0).double()
SAMPLE = torch.rand(N, generator=g, dtype=torch.float64) ** 3
LENGTHS = torch.randint(1, 3, (N,), generator=g)


def by_class(scores: Tensor) -> Tensor:
    return scores.transpose(1, 2)


def log_probs(scores: Tensor) -> Tensor:
    return scores.log_softmax(-1)


def words_loss(pred: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(pred.flatten(0, 1), y.flatten(), weight=WEIGHTS)


def masked_loss(pred: Tensor, y: Tensor) -> Tensor:
    kept = y >= 0
    return (F.cross_entropy(pred.transpose(1, 2), y.clamp_min(0), reduction="none") * kept).sum() / kept.sum().clamp_min(1)


def sample_loss(pred: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return (F.cross_entropy(pred, y, reduction="none") * w).sum() / w.sum()


CASES = {
    "classes": Case(nn.CrossEntropyLoss(weight=WEIGHTS), (Y,)),
    "padding": Case(nn.CrossEntropyLoss(), (WORDS,), True, by_class),
    "padding_and_classes": Case(partial(F.cross_entropy, weight=WEIGHTS), (WORDS,), True, by_class),
    "a_positive_ignore_index": Case(partial(F.cross_entropy, ignore_index=0), (Y,)),
    "smoothing": Case(nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=1, label_smoothing=0.2), (Y,)),
    "probabilities": Case(nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), (PROBS,)),
    "log_probs": Case(nn.NLLLoss(weight=WEIGHTS, ignore_index=2), (Y,), then=log_probs),
    "flags": Case(nn.BCEWithLogitsLoss(weight=WEIGHTS, pos_weight=WEIGHTS), (FLAGS,)),
    "weights_as_a_target": Case(F.binary_cross_entropy_with_logits, (FLAGS, VALUES)),
    "mean_square": Case(nn.MSELoss(), (VALUES,)),
    "sum": Case(nn.HuberLoss(reduction="sum"), (VALUES,)),
    "kl": Case(nn.KLDivLoss(reduction="batchmean"), (PROBS,), then=log_probs),
    "ctc": Case(
        nn.CTCLoss(), (WORDS[:, :2].clamp_min(1), torch.full((N,), T), LENGTHS), True, lambda s: log_probs(s).transpose(0, 1).contiguous()
    ),
    "poisson": Case(F.poisson_nll_loss, (VALUES,)),
    "gaussian": Case(nn.GaussianNLLLoss(), (VALUES, PROBS)),
    "hinge": Case(partial(F.hinge_embedding_loss, margin=2.0), (2 * FLAGS - 1,)),
    "cosine": Case(nn.CosineEmbeddingLoss(), (VALUES, SIGNS)),
    "triplet": Case(F.triplet_margin_loss, (VALUES, PROBS)),
    "margins": Case(nn.MultiMarginLoss(weight=WEIGHTS), (Y,)),
    "soft_margins": Case(F.multilabel_soft_margin_loss, (FLAGS,)),
    "lambda": Case(lambda pred, y: words_loss(pred, y), (WORDS,), True),
    "masked": Case(masked_loss, (WORDS,), True, batch_weight=lambda pred, y: (y >= 0).sum()),
    "samples": Case(sample_loss, (Y, SAMPLE), batch_weight=lambda pred, y, w: w.sum()),
}


# What several processes cut: each case in two ways, and these in all
ALL_CUTS = "padding_and_classes smoothing probabilities log_probs flags weights_as_a_target sum ctc cosine lambda masked samples".split()
SHARED = [(name, size) for name in CASES for size in CUTS if size in ("7", "ragged") or name in ALL_CUTS]


def cut(data: tuple, size: Any) -> list[tuple]:
    return list(zip(*(t.split(size) for t in data)))


def learner(case: Case, size: Any, lr: float = 1e-30, cbs: Any = None) -> cbnb.Learner:
    batches = cut((X, *case.targets), size)
    learn = cbnb.Learner(
        cbnb.DataLoaders(batches, batches, n_inp=1, device="cpu"),
        case.net(),
        case.loss_func,
        torch.optim.SGD,
        lr=lr,
        cbs=cbs,
        batch_weight=case.batch_weight,
    )
    learn.logger = lambda row: None
    return learn.remove_cb(cbnb.ProgressCallback)


def by_hand(case: Case, lr: float = 0.1) -> tuple[float, list[float]]:
    """The loss of the whole set, and the weights after an update with its gradient"""
    net = case.net()
    loss = case.loss_func(net(X), *case.targets)
    loss.backward()
    return loss.item(), [w for p in net.parameters() for w in (p - lr * p.grad).flatten().tolist()]


def weights(learn: cbnb.Learner) -> list[float]:
    return [w for p in learn.model.parameters() for w in p.flatten().tolist()]


def losses(learn: cbnb.Learner, **kwargs: Any) -> list[float]:
    """The losses of the row of an epoch whose rate is next to 0"""
    learn.fit(1, **kwargs)
    row = learn.recorder.last().epochs[-1]
    return [row["train_loss"], row["valid_loss"]]


def together(case: Case, size: Any) -> dict[str, Any]:
    """What one of several processes finds"""
    accumulated, updates = learner(case, size, 0.1, cbnb.GradientAccumulation(N)), learner(case, size, 0.1)
    with accumulated.distributed():
        valid = accumulated.validate()[0]
        accumulated.fit(1)  # one update, after the last batch
        found = [accumulated.recorder.last().epochs[-1]["train_loss"], valid]
    with updates.distributed():
        updates.fit(1)
    return dict(losses=found, accumulated=weights(accumulated), updates=weights(updates))


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)
    warnings.filterwarnings("ignore", "the learning rate is 0")
    found = {f"{name} {size}": together(CASES[name], CUTS[size]) for name, size in SHARED}
    with open(f"{sys.argv[1]}.{torch.distributed.get_rank()}", "w") as file:
        json.dump(found, file)
