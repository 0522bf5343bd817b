"""What a user calls, for type checkers: `tests/package/test_typing.py` has mypy read this. Each line that is marked must be an error."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from cbnb.all import (
    Callback,
    CutMix,
    DataLoaders,
    EarlyStopping,
    GradientAccumulation,
    GradientClip,
    Learner,
    OneCycle,
    Recorder,
    SaveModel,
    accuracy,
    load_learner,
)

x, y = torch.randn(20, 3), torch.randint(2, (20,))
data = TensorDataset(x, y)
dls: DataLoaders = DataLoaders.from_datasets(data, data, bs=4, device="cpu")
learn = Learner(dls, nn.Linear(3, 2), nn.CrossEntropyLoss(), metrics=accuracy, cbs=[GradientClip(1.0)])

# fit
learn.fit(1)
learn.fit(2, lr=0.1, wd=0.01, cbs=EarlyStopping(patience=2), start_epoch=1, valid_every=[1])
learn.fit_one_cycle(1, 0.1, moms=(0.95, 0.85, 0.95))
learn.fit_flat_cos(1, lr=0.1)
learn.fit_sgdr(1, 1)
learn.fine_tune(1, freeze_epochs=1)
learn.fit("2000 steps", valid_every="500 steps")
learn.fit(None)  # error: Argument 1 to "fit" of "Learner" has incompatible type "None"; expected "int | str"
learn.fit(1, rate=0.1)  # error: Unexpected keyword argument "rate" for "fit" of "Learner"
learn.fitt(1)  # error: "Learner" has no attribute "fitt"; maybe "fit"?

# find a rate
found = learn.lr_find(num_it=10, show_plot=False)
rate: float | None = found.lr
learn.lr_find(num_it="ten")  # error: Argument "num_it" has incompatible type "str"; expected "int"

# take fits back
learn.rewind()
learn.rewind(2)
learn.keep_restore_points = 5
kept: int = learn.keep_restore_points + len(learn.runs)
called: str = learn.runs[-1].called

# look at what happened
recorder: Recorder = learn.recorder
recorder.plot_losses(skip_start=1)
recorder.plot_lr(show_moms=True)
recorder.plot_metrics()
recorder.history.runs[0].n_steps

# evaluate
values = learn.validate(dl=dls.valid)
preds, targets = learn.get_preds()
first, *_ = learn.predict(x[0])
learn.validate("valid")
learn.get_preds(ds_idx="valid")  # error: Argument "ds_idx" has incompatible type "str"; expected "int"

# callbacks
learn.add_cb(SaveModel()).add_cbs([CutMix(), GradientAccumulation(8)]).remove_cb(SaveModel)
with learn.added_cbs(OneCycle(0.1)) as same:
    same.fit(1)
with learn.no_logging(), learn.no_bar():
    learn.freeze()
    learn.freeze_to(-1)
    learn.unfreeze()


class Largest(Callback):
    """Attributes of the learner are the callback's own."""

    def before_fit(self) -> None:
        self.norms: list[float] = []

    def before_step(self) -> None:
        self.norms.append(max(float(p.grad.norm()) for p in self.model.parameters()))


largest = Largest()
learn.fit(1, cbs=largest)
print(largest.norms, learn.where(), learn.ordered_cbs("after_batch"))
learn.show_training_loop()

# files
path: Path = learn.save("model")
again: Learner = learn.load(path).load("model", strict=False)
load_learner(learn.export()).summary()
learn.save(3)  # error: Argument 1 has incompatible type "int"; expected "str | Path"

# data
dls.one_batch()
batches: int = len(dls)
dls.to("cpu").test_dl(x, bs=2)
