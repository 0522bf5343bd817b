"""Other training libraries, as contestants of `training.py`: what each needs to train a model on a list of batches.

Each function trains with AdamW and with what its library does by default (progress bars, records of the loss), apart from
files, and returns the trained model. A library that is not installed is left out.
"""

import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

Train = Callable[[Any, int, float], nn.Module]  # a task, a number of epochs and a rate -> the model


def skorch(task: Any, epochs: int, lr: float) -> nn.Module:
    from skorch import NeuralNet
    from skorch.helper import predefined_split

    class Batches(torch.utils.data.Dataset):
        def __init__(self, batches: Any):
            self.batches = batches

        def __len__(self) -> int:
            return len(self.batches)

        def __getitem__(self, i: int) -> Any:
            return self.batches.batches[i]

    def iterate(dataset: Batches, **_: Any) -> Any:
        return dataset.batches

    net = NeuralNet(
        task.model(),
        criterion=type(task.loss_func),
        optimizer=AdamW,
        lr=lr,
        max_epochs=epochs,
        iterator_train=iterate,
        iterator_valid=iterate,
        train_split=predefined_split(Batches(task.valid)),
    )
    net.fit(Batches(task.train), None)
    return net.module_


def accelerate(task: Any, epochs: int, lr: float) -> nn.Module:
    from accelerate import Accelerator

    accelerator, plain = Accelerator(cpu=True), task.model()
    model, opt = accelerator.prepare(plain, AdamW(plain.parameters(), lr=lr))
    losses = []
    for _ in range(epochs):
        model.train()
        for x, y in task.train:
            loss = task.loss_func(model(x), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            total = sum(task.loss_func(model(x), y) * len(x) for x, y in task.valid)
        print(sum(losses[-len(task.train) :]), float(total))
    return plain


def ignite(task: Any, epochs: int, lr: float) -> nn.Module:
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Loss

    model = task.model()
    trainer = create_supervised_trainer(model, AdamW(model.parameters(), lr=lr), task.loss_func)
    evaluator = create_supervised_evaluator(model, metrics=dict(loss=Loss(task.loss_func)))
    losses: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run(task.valid))
    trainer.run(task.train, max_epochs=epochs)
    return model


def transformers(task: Any, epochs: int, lr: float) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    class Wrapped(nn.Module):
        def __init__(self, model: nn.Module):
            super().__init__()
            self.model = model

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            logits = self.model(x)
            return dict(loss=task.loss_func(logits, labels), logits=logits)

    class Named:
        def __init__(self, batches: Any):
            self.batches = batches

        def __len__(self) -> int:
            return len(self.batches)

        def __iter__(self) -> Any:
            return (dict(x=x, labels=y) for x, y in self.batches)

    class OnBatches(Trainer):
        def get_train_dataloader(self) -> Any:
            return Named(task.train)

        def get_eval_dataloader(self, *_: Any) -> Any:
            return Named(task.valid)

    model = task.model()
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt := AdamW(model.parameters(), lr=lr), lambda _: 1.0)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            max_grad_norm=0.0,
        )
        data = dict(train_dataset=task.train.batches, eval_dataset=task.valid.batches)
        OnBatches(Wrapped(model), settings, optimizers=(opt, scheduler), **data).train()
    return model


def fastai(task: Any, epochs: int, lr: float) -> nn.Module:
    from functools import partial

    from fastai.basics import DataLoaders, Learner, OptimWrapper

    dls = DataLoaders(task.train, task.valid, device="cpu")
    dls.n_inp = 1
    learn = Learner(dls, task.model(), loss_func=task.loss_func, opt_func=partial(OptimWrapper, opt=AdamW), lr=lr)
    learn.fit(epochs)
    return learn.model


def lightning(task: Any, epochs: int, lr: float) -> nn.Module:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def training_step(self, batch: Any, i: int) -> Any:
            x, y = batch
            loss = task.loss_func(self.model(x), y)
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Any, i: int) -> None:
            x, y = batch
            self.log("valid_loss", task.loss_func(self.model(x), y), prog_bar=True, batch_size=len(x))

        def configure_optimizers(self) -> Any:
            return AdamW(self.parameters(), lr=lr)

    module = Module()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, enable_checkpointing=False, default_root_dir=folder)
        trainer.fit(module, task.train, task.valid)
    return module.model


def keras(task: Any, epochs: int, lr: float) -> nn.Module:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    class Batches(DataAdapter):
        has_partial_batch, batch_size, partial_batch_size, num_batches = False, None, None, None

        def __init__(self, batches: Any):
            self.batches, self.num_batches = batches, len(batches)

        def get_torch_dataloader(self) -> Any:
            return self.batches

    x, y = task.train.batches[0]
    net = task.model()
    model = keras.Sequential([keras.layers.Input(tuple(x.shape[1:])), keras.layers.TorchModuleWrapper(net, output_shape=(None, 10))])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(lr, weight_decay=0.01, epsilon=1e-8), loss=loss)
    model.evaluate(x, y, verbose=0)  # builds what `fit` would build with a batch of its own
    model.optimizer.build(model.trainable_variables)
    model.fit(Batches(task.train), validation_data=Batches(task.valid), epochs=epochs)
    return net


PEERS: dict[str, Train] = dict(
    skorch=skorch, accelerate=accelerate, ignite=ignite, transformers=transformers, fastai=fastai, lightning=lightning, keras=keras
)


def installed() -> list[str]:
    return [name for name in PEERS if importlib.util.find_spec(name) is not None]


def missing() -> list[str]:
    return [name for name in PEERS if name not in installed()]
