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
}
AMONG, AT_LEAST = 3, 40
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
    assert len(QUESTIONS) == 42
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
