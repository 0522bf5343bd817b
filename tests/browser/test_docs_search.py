"""Questions as people type them into the search of the documentation, and the pages that answer them."""

from collections.abc import Iterator

import pytest

from docs_site import build, served
from lab import chromium

# Each with the pages that answer it: one of them must be among the first three.
QUESTIONS = {
    "resume after crash": ("how_to/resume_after_a_crash",),
    "tensorboard": ("how_to/log_elsewhere",),
    "wandb": ("how_to/log_elsewhere",),
    "own metric": ("how_to/own_metric",),
    "change lr": ("how_to/change_lr_while_training",),
    "learning rate while training": ("how_to/change_lr_while_training",),
    "amp": ("how_to/mixed_precision",),
    "fp16": ("how_to/mixed_precision",),
    "mixed precision": ("how_to/mixed_precision",),
    "ddp": ("how_to/several_gpus",),
    "multi gpu": ("how_to/several_gpus",),
    "checkpoint": ("how_to/keep_the_best", "how_to/resume_after_a_crash", "reference/saving"),
    "save best model": ("how_to/keep_the_best",),
    "early stopping": ("how_to/stop_early",),
    "gradient clipping": ("how_to/clip_gradients",),
    "clip_grad_norm": ("how_to/clip_gradients",),
    "gradient accumulation": ("how_to/accumulate_gradients",),
    "fit_one_cycle": ("reference/learner",),
    "lr_find": ("reference/learner", "reference/lr_find"),
    "find learning rate": ("reference/lr_find", "lr/finder"),
    "freeze layers": ("how_to/freeze_layers",),
    "discriminative learning rates": ("how_to/freeze_layers",),
    "oom": ("how_to/out_of_memory",),
    "cuda out of memory": ("how_to/out_of_memory",),
    "nan loss": ("how_to/nan_losses",),
    "slow training": ("how_to/why_is_it_slow",),
    "seed": ("how_to/reproducible_runs",),
    "cross validation": ("how_to/cross_validation",),
    "optuna": ("how_to/tune_with_optuna",),
    "hyperparameter search": ("how_to/tune_with_optuna",),
    "huggingface": ("how_to/dict_batches", "moving/hf_trainer"),
    "gan": ("how_to/two_optimizers", "tutorials/steps"),
    "train on a folder of images": ("how_to/image_folder",),
    "pandas dataframe": ("how_to/dataframe",),
    "multiple inputs": ("how_to/several_inputs_outputs",),
    "run as script": ("how_to/run_as_a_script",),
    "widgets not showing vscode": ("how_to/no_widgets",),
    "lightning": ("moving/lightning",),
    "keras": ("moving/keras",),
    "sklearn metric": ("how_to/sklearn_torchmetrics",),
    "confusion matrix": ("guides/results", "callbacks/interpret", "reference/predictions"),
    "torch.compile": ("how_to/compile",),
    # in words of other libraries, and pasted errors
    "class_weight imbalanced dataset": ("how_to/class_weights",),
    "WeightedRandomSampler": ("how_to/class_weights",),
    "pos_weight BCEWithLogitsLoss": ("how_to/class_weights",),
    "label smoothing": ("how_to/label_smoothing",),
    "export onnx": ("how_to/export_onnx",),
    "torchscript trace": ("how_to/export_onnx",),
    "deploy model to production": ("how_to/export_onnx", "how_to/predict_new_data", "reference/saving"),
    "pretrained resnet timm": ("how_to/pretrained_weights",),
    "transfer learning": ("how_to/pretrained_weights", "how_to/freeze_layers"),
    "load_state_dict size mismatch": ("how_to/pretrained_weights", "how_to/errors"),
    "arcface loss": ("how_to/loss_with_parameters",),
    "learnable temperature parameter in loss": ("how_to/loss_with_parameters",),
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
    "max_steps": ("how_to/validate_every_n_steps", "how_to/stop_early", "moving/lightning", "moving/hf_trainer", "reference/stopping"),
    "save_steps": (
        "how_to/validate_every_n_steps",
        "how_to/resume_after_a_crash",
        "how_to/keep_the_best",
        "moving/hf_trainer",
        "reference/checkpoints",
    ),
    "load_best_model_at_end": ("how_to/keep_the_best", "moving/hf_trainer"),
    "restore_best_weights": ("how_to/keep_the_best", "moving/keras"),
    "ModelCheckpoint": ("how_to/keep_the_best", "moving/keras", "moving/lightning"),
    "ReduceLROnPlateau": ("how_to/change_lr_while_training", "reference/trackers", "reference/stopping", "how_to/own_schedule"),
    "gradient_accumulation_steps": ("how_to/accumulate_gradients", "moving/hf_trainer"),
    "training_step": ("tutorials/steps", "moving/lightning"),
    "freeze backbone": ("how_to/freeze_layers",),
    "model.fit": ("moving/keras", "reference/learner"),
    "untar_data vision_learner": ("moving/fastai_v2",),
    "LambdaCallback": ("moving/keras", "tutorials/callback", "reference/callback", "moving/fastai_v2"),
    "on_epoch_end": ("moving/keras", "tutorials/callback", "reference/callback", "moving/from_fastai_v1", "moving/lightning"),
    "torchmetrics F1Score": ("how_to/sklearn_torchmetrics", "tutorials/metrics"),
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
    "loss does not decrease": ("how_to/does_not_learn", "insight/check"),
    "exploding gradients": ("how_to/nan_losses", "how_to/clip_gradients"),
    "loss is nan after first epoch": ("how_to/nan_losses",),
    "training is slow gpu utilization low": ("how_to/why_is_it_slow",),
    "num_workers pin_memory": ("how_to/why_is_it_slow", "reference/data", "basics/workers", "basics/loaders", "data"),
    "kernel died during training": ("how_to/resume_after_a_crash", "tutorials/resume"),
    "interrupt training keyboard": ("how_to/stop_early", "learner", "reference/learner", "undo", "how_it_works"),
    "progress bar not showing in vscode": ("how_to/no_widgets",),
    "fsdp": ("how_to/several_gpus", "guides/several_processes", "reference/distributed"),
    "torchrun nproc_per_node": ("how_to/several_gpus", "guides/several_processes"),
    "mixup augmentation": ("callbacks/mixup", "reference/mixup"),
    "exponential moving average of weights": ("callbacks/averaging", "reference/averaging"),
    "weight decay exclude bias": ("how_to/freeze_layers",),
    "cosine annealing warmup": ("how_to/own_schedule", "reference/schedules", "schedule"),
    "two losses": ("how_to/two_optimizers", "tutorials/steps", "how_to/several_inputs_outputs", "how_to/loss_with_parameters"),
    "predict single image": ("how_to/predict_new_data",),
    "get probabilities instead of logits": ("how_to/predict_new_data", "guides/results", "reference/predictions"),
    "random seed different results each run": ("how_to/reproducible_runs",),
    "k fold": ("how_to/cross_validation",),
    "mlflow": ("how_to/log_elsewhere",),
    "migrate from huggingface trainer": ("moving/hf_trainer",),
}
AMONG, AT_LEAST = 3, 98
RESULTS = "() => [...document.querySelectorAll('ul.search li a')].map(a => new URL(a.href).pathname.slice(1).replace('.html', ''))"


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(build()) as address:
        yield address


def found(page, address: str, question: str) -> list[str]:
    """The pages that the search names, the best first; one with several places counts once."""
    page.goto(f"{address}/search.html?q={question.replace(' ', '+')}")
    page.wait_for_selector("ul.search li a", timeout=30_000)
    return list(dict.fromkeys(page.evaluate(RESULTS)))


def test_the_search_answers_questions_as_people_type_them(site: str):
    wrong = {}
    with chromium() as browser:
        page = browser.new_page()
        for question, pages in QUESTIONS.items():
            first = found(page, site, question)[:AMONG]
            if not set(first) & set(pages):
                wrong[question] = first
    assert len(QUESTIONS) == 102
    assert len(QUESTIONS) - len(wrong) >= AT_LEAST, wrong


def test_names_lead_to_the_reference(site: str):
    with chromium() as browser:
        page = browser.new_page()
        for name, place in {
            "fit_one_cycle": "reference/learner.html#cbnb.learner.Learner.fit_one_cycle",
            "learn.lr_find": "reference/learner.html#cbnb.learner.Learner.lr_find",
            "GradientClip": "reference/gradients.html#cbnb.callbacks.gradients.GradientClip",
        }.items():
            found(page, site, name)
            assert page.locator("ul.search li a").first.get_attribute("href").endswith(place)
            page.locator("ul.search li a").first.click()
            page.wait_for_url(f"**/{place}")
            assert page.locator(f"[id='{place.partition('#')[2]}']").is_visible()


def test_a_search_without_a_match_says_so(site: str):
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{site}/search.html?q=xyzzyplugh")
        page.wait_for_function("() => document.body.innerText.includes('Nothing found for')")
