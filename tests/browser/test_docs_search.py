"""Questions as people type them into the search of the documentation, and the pages that answer them."""

from collections.abc import Iterator

import pytest

from docs_site import build, served
from lab import chromium

# Each with the pages that answer it: one of them must be among the first three.
QUESTIONS = {
    "tensorboard": ("how_to/log_elsewhere",),
    "own metric": ("how_to/own_metric",),
    "change lr": ("how_to/change_lr_while_training",),
    "ddp": ("how_to/several_gpus",),
    "find learning rate": ("reference/lr_find", "lr/finder"),
    "clip_grad_norm": ("how_to/clip_gradients",),
    "fit_one_cycle": ("reference/learner",),
    "seed": ("how_to/reproducible_runs",),
    "optuna": ("how_to/tune_with_optuna",),
    "huggingface": ("how_to/dict_batches", "moving/hf_trainer"),
    "gan": ("how_to/two_optimizers", "tutorials/steps"),
    "pandas dataframe": ("how_to/dataframe",),
    "multiple inputs": ("how_to/several_inputs_outputs",),
    "run as script": ("how_to/run_as_a_script",),
    "torch.compile": ("how_to/compile",),
    "slow training": ("how_to/why_is_it_slow",),
    "class_weight imbalanced dataset": ("how_to/class_weights",),
    "pos_weight BCEWithLogitsLoss": ("how_to/class_weights",),
    "label smoothing": ("how_to/label_smoothing",),
    "export onnx": ("how_to/export_onnx",),
    "deploy model to production": ("how_to/export_onnx", "how_to/predict_new_data", "reference/saving"),
    "pretrained resnet timm": ("how_to/pretrained_weights",),
    "load_state_dict size mismatch": ("how_to/pretrained_weights", "how_to/errors"),
    "arcface loss": ("how_to/own_loss",),
    "IndexError: Target 10 is out of bounds.": ("how_to/errors",),
    "expected scalar type Long but found Float": ("how_to/errors",),
    "RuntimeError: CUDA error: device-side assert triggered": ("how_to/errors",),
    "mat1 and mat2 shapes cannot be multiplied": ("how_to/errors",),
    "Expected all tensors to be on the same device": ("how_to/errors",),
    "element 0 of tensors does not require grad and does not have a grad_fn": ("how_to/errors",),
    "Trying to backward through the graph a second time": ("how_to/errors",),
    "one of the variables needed for gradient computation has been modified by an inplace operation": ("how_to/errors",),
    "DataLoader worker exited unexpectedly": ("how_to/errors", "how_to/run_as_a_script", "how_to/why_is_it_slow"),
    "stack expects each tensor to be equal size": ("how_to/errors",),
    "val_check_interval": ("how_to/validate_every_n_steps", "moving/lightning"),
    "load_best_model_at_end": ("how_to/keep_the_best", "moving/hf_trainer"),
    "on_epoch_end": ("moving/keras", "tutorials/callback", "reference/callback", "moving/from_fastai_v1", "moving/lightning"),
    "validation loss goes up while training loss goes down": (
        "how_to/does_not_learn",
        "insight/diagnose",
        "reference/diagnose",
        "reference/insight",
    ),
    "model predicts only one class": (
        "how_to/does_not_learn",
        "insight/check",
        "insight/diagnose",
        "how_to/class_weights",
        "insight/prediction_faults",
    ),
    "num_workers pin_memory": ("how_to/why_is_it_slow", "reference/data", "basics/workers", "basics/loaders", "data"),
    "fsdp": ("how_to/several_gpus", "guides/several_processes", "reference/distributed"),
    "weight decay exclude bias": ("how_to/freeze_layers",),
    # in words of Keras, Lightning, transformers, fastai and scikit-learn, and errors pasted as they are
    "ModelCheckpoint save_best_only": ("how_to/keep_the_best", "moving/keras"),
    "model.compile optimizer loss metrics": ("moving/keras",),
    "model.evaluate": ("moving/keras", "reference/learner", "how_to/predict_new_data"),
    "model.summary number of parameters": ("moving/keras", "reference/learner"),
    "model.predict on new data": ("how_to/predict_new_data",),
    "CSVLogger": ("how_to/log_elsewhere", "callbacks/csv_logger", "reference/loggers"),
    "TerminateOnNaN": ("how_to/nan_losses", "reference/stopping", "callbacks/stopping", "moving/keras"),
    "BackupAndRestore": ("how_to/resume_after_a_crash", "moving/keras"),
    "LearningRateScheduler callback": ("how_to/own_schedule", "moving/keras", "how_to/change_lr_while_training"),
    "trainable = False": ("how_to/freeze_layers", "moving/keras"),
    "flow_from_directory": ("how_to/image_folder", "moving/keras"),
    "validation_split": ("moving/keras", "how_to/dataframe", "how_to/image_folder"),
    "validation_freq": ("how_to/validate_every_n_steps", "moving/keras"),
    "keras history plot accuracy loss": ("moving/keras", "recorder", "reference/history", "history"),
    "pl.Trainer max_epochs": ("moving/lightning",),
    "configure_optimizers": ("moving/lightning", "how_to/two_optimizers"),
    "accumulate_grad_batches": ("how_to/accumulate_gradients", "moving/lightning"),
    "gradient_clip_val": ("how_to/clip_gradients", "moving/lightning"),
    'precision="bf16-mixed"': ("how_to/mixed_precision", "moving/lightning"),
    "overfit_batches": ("moving/lightning", "how_to/does_not_learn"),
    "limit_train_batches": ("moving/lightning", "reference/stopping", "callbacks/stopping", "how_to/stop_early"),
    "ckpt_path resume": ("how_to/resume_after_a_crash", "moving/lightning"),
    "LightningDataModule": ("moving/lightning",),
    "self.log metric": ("moving/lightning", "how_to/own_metric", "how_to/log_elsewhere"),
    "TrainingArguments": ("moving/hf_trainer",),
    "per_device_train_batch_size": ("moving/hf_trainer", "how_to/several_gpus"),
    "compute_metrics": ("moving/hf_trainer", "how_to/own_metric"),
    "warmup_steps": ("moving/hf_trainer", "how_to/own_schedule"),
    "save_total_limit": ("moving/hf_trainer", "how_to/resume_after_a_crash", "files/checkpoints"),
    "push_to_hub": ("moving/hf_trainer", "files/export", "how_to/export_onnx"),
    "fine_tune unfreeze": ("how_to/freeze_layers", "how_to/pretrained_weights", "callbacks/fit_methods", "reference/learner"),
    "ClassificationInterpretation plot_top_losses": ("callbacks/interpret", "reference/predictions", "guides/results", "moving/fastai_v2"),
    "learn.export load_learner": ("how_to/save_and_load", "files/export", "reference/saving", "how_to/predict_new_data"),
    "show_batch": ("moving/fastai_v2", "guides/results", "display/items", "reference/learner", "reference/data"),
    "SaveModelCallback": ("how_to/keep_the_best", "moving/fastai_v2"),
    "CutMix": ("callbacks/mixup", "reference/regularization"),
    "cross_val_score StratifiedKFold": ("how_to/cross_validation",),
    "GridSearchCV": ("how_to/tune_with_optuna", "moving/skorch"),
    "train_test_split": ("how_to/dataframe", "how_to/cross_validation", "moving/skorch", "how_to/image_folder"),
    "partial_fit": ("moving/skorch",),
    "predict_proba": ("how_to/predict_new_data", "moving/skorch"),
    "ValueError: Expected input batch_size (32) to match target batch_size (16)": ("how_to/errors",),
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate": ("how_to/out_of_memory",),
    "RuntimeError: Error(s) in loading state_dict: Missing key(s)": ("how_to/errors", "how_to/pretrained_weights"),
    "TypeError: forward() takes 2 positional arguments but 3 were given": ("how_to/errors", "how_to/several_inputs_outputs"),
    "AttributeError: Can't get attribute on <module '__main__'> DataLoader worker": (
        "how_to/errors",
        "how_to/run_as_a_script",
        "basics/workers",
    ),
    "Using a target size that is different to the input size": ("how_to/errors",),
    "ValueError: too many values to unpack (expected 2)": ("how_to/errors", "how_to/several_inputs_outputs"),
    "EarlyStopping min_delta patience": ("how_to/stop_early",),
    "num_sanity_val_steps": ("moving/lightning", "callbacks/sanity_check"),
    "trainer.predict": ("how_to/predict_new_data", "moving/lightning", "moving/hf_trainer"),
    "lr_scheduler_type cosine": ("moving/hf_trainer", "how_to/own_schedule"),
    "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input to have 3 channels, but got 1 channels": (
        "how_to/errors",
        "how_to/image_folder",
    ),
    "RuntimeError: The size of tensor a (10) must match the size of tensor b (16) at non-singleton dimension 1": ("how_to/errors",),
    "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same": ("how_to/errors",),
    "RuntimeError: Found dtype Double but expected Float": ("how_to/errors", "how_to/dataframe"),
    "ValueError: Expected more than 1 value per channel when training": ("how_to/errors",),
    "UnpicklingError: Weights only load failed": ("how_to/errors", "files/saving", "how_to/pretrained_weights"),
    "ModuleNotFoundError: No module named 'ipywidgets'": ("how_to/no_widgets", "how_to/errors"),
    "AttributeError: 'dict' object has no attribute 'to'": ("how_to/errors", "how_to/dict_batches"),
    # names that only their words lead to, and a beginner's words
    "LearningRateMonitor": ("moving/lightning", "how_to/watch_more"),
    "RandomizedSearchCV": ("how_to/tune_with_optuna", "moving/skorch"),
    "ImageDataGenerator rotation_range": ("how_to/image_folder",),
    "how to use the gpu": ("how_to/device",),
    "save my model and use it later": ("how_to/save_and_load",),
    "write my own loss function": ("how_to/own_loss",),
    "what is an epoch": ("guides/terms",),
    "change the optimizer to SGD with momentum": ("how_to/optimizer",),
    "pad_sequence collate_fn": ("how_to/own_dataset",),
    "see which pictures the model got wrong": ("guides/results",),
    "auto_lr_find": ("reference/lr_find", "lr/finder"),
    "auto_scale_batch_size": ("how_to/out_of_memory", "callbacks/batch_size"),
    "quantize model": ("how_to/export_onnx",),
    "accuracy stays at 0.1": ("how_to/does_not_learn", "insight/check"),
    "_pickle.UnpicklingError: Weights only load failed": ("how_to/errors", "how_to/save_and_load"),
    "no_decay bias LayerNorm.weight": ("how_to/freeze_layers", "how_to/optimizer"),
    "restore_best_weights": ("how_to/keep_the_best", "how_to/stop_early", "moving/keras"),
    "RuntimeError: shape '[32, 784]' is invalid for input of size 12544": ("how_to/errors",),
    # tasks, and what other libraries do
    "interrupt kernel keyboardinterrupt keep weights": ("how_to/stop_early",),
    "test time augmentation tta": ("how_to/predict_new_data",),
    "segmentation masks dice metric": ("how_to/own_metric",),
    "nested cross validation early stopping leakage": ("how_to/cross_validation",),
    "share results notebook html export dashboard": ("how_to/run_as_a_script",),
    "StochasticWeightAveraging": ("callbacks/averaging", "moving/lightning"),
    "SimCLR contrastive learning": ("how_to/own_loss",),
    "VAE kl loss": ("how_to/own_loss",),
    "graph neural network pytorch geometric": ("how_to/dict_batches",),
    "Grad-CAM saliency feature importance": ("guides/results",),
    "validation accuracy higher than training accuracy": ("how_to/does_not_learn",),
    "estimate remaining time eta": ("display/progress",),
    # the library itself, and its own errors in words of others
    "install with pip conda": ("index",),
    "contributing pull request development setup": ("project/contributing",),
    "changelog release notes": ("project/changelog",),
    "No validation dataloader": ("how_to/errors",),
    "Learner has not been fit yet": ("how_to/errors",),
}
AMONG, AT_LEAST = 3, 133
RESULTS = "() => [...document.querySelectorAll('ul.search li a')].map(a => new URL(a.href).pathname.slice(1).replace('.html', ''))"
ASK = "question => { Search.output.replaceChildren(); Search.query(question); }"  # in place of a new page, which would read the index again


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(build()) as address:
        yield address


@pytest.fixture
def page(browser):
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


def search(page, address: str, question: str) -> None:
    """Open the page of the results."""
    page.goto(f"{address}/search.html?q={question.replace(' ', '+')}")
    page.wait_for_selector("ul.search li a", timeout=30_000)


def found(page) -> list[str]:
    """The pages that the search names, the best first; one with several places counts once."""
    return list(dict.fromkeys(page.evaluate(RESULTS)))


def test_the_search_answers_questions_as_people_type_them(site: str, page):
    wrong = {}
    search(page, site, "learning rate")
    for question, pages in QUESTIONS.items():
        page.evaluate(ASK, question)
        first = found(page)[:AMONG]
        if not set(first) & set(pages):
            wrong[question] = first
    assert len(QUESTIONS) == 137
    assert len(QUESTIONS) - len(wrong) >= AT_LEAST, wrong


def test_a_new_page_finds_the_same(site: str, page):
    """What `ASK` shows is what a reader sees who comes with a question."""
    asked = list(QUESTIONS)[3::30]
    here = []
    for question in asked:
        search(page, site, question)
        here.append(found(page))
    for question, first in zip(asked, here):
        page.evaluate(ASK, question)
        assert found(page) == first


def test_names_lead_to_the_reference(site: str, page):
    for name, place in {
        "fit_one_cycle": "reference/learner.html#cbnb.learner.Learner.fit_one_cycle",
        "learn.lr_find": "reference/learner.html#cbnb.learner.Learner.lr_find",
        "GradientClip": "reference/gradients.html#cbnb.callbacks.gradients.GradientClip",
    }.items():
        search(page, site, name)
        assert page.locator("ul.search li a").first.get_attribute("href").endswith(place)
        page.locator("ul.search li a").first.click()
        page.wait_for_url(f"**/{place}")
        assert page.locator(f"[id='{place.partition('#')[2]}']").is_visible()


def test_an_error_leads_to_the_part_of_the_page_that_explains_it(site: str, page):
    for error, place in {
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x1024 and 256x5)": "errors-of-torch-shapes",
        "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'": "errors-of-torch-data-and-workers",
        "IndexError: Target 7 is out of bounds.": "indexerror-target-10-is-out-of-bounds",
    }.items():
        search(page, site, error)
        assert page.locator("ul.search li a").first.get_attribute("href").endswith(f"how_to/errors.html#{place}")


def test_a_search_without_a_match_says_so(site: str, page):
    page.goto(f"{site}/search.html?q=xyzzyplugh")
    page.wait_for_function("() => document.body.innerText.includes('Nothing found for')")
