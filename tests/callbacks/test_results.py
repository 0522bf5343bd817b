"""Items, scores, `show_results` and `interpret`: what the pages leave out."""

import base64
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from io import BytesIO

import pytest
import sklearn.metrics
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Subset, SubsetRandomSampler, TensorDataset

from cbnb.all import Batches, Callback, DataLoaders, Learner, MixedPrecision
from cbnb.callbacks.interpret import Interpretation, Items, class_names, items_for_page, nth_item, predictions, spread, task_of
from cbnb.display.items import Card, as_pixels, brief, cards_figure, cards_html, cards_text, is_image, png, shown, shown_parts
from cbnb.display.scores import (
    calibration,
    calibration_figure,
    class_scores,
    confused_pairs,
    confusion_matrix,
    label_scores,
    most_in_error,
    value_scores,
)
from cbnb.names.fastai import ClassificationInterpretation
from cbnb.toy import close, digits_learner, line_learner, wave_learner
from helpers import packed_texts

EVIL = "<script>alert(1)</script>"


def image_of(part):
    from PIL import Image

    return Image.open(BytesIO(base64.b64decode(part.value.partition(",")[2])))


def learner(x, y, loss=None, model=None, classes=None, train=None, **kwargs) -> Learner:
    """A linear model on a validation set; the training loader shuffles."""
    data = TensorDataset(x, y)
    if classes is not None:
        data.classes = classes
    torch.manual_seed(0)
    model = model or nn.Linear(x.shape[1], 3)
    train = train or DataLoader(data, 8, shuffle=True)
    return Learner(DataLoaders(train, DataLoader(data, 8), device="cpu"), model, loss or nn.CrossEntropyLoss(), default_cbs=False, **kwargs)


def classifier(n=30, **kwargs) -> Learner:
    torch.manual_seed(1)
    return learner(torch.randn(n, 4), torch.randint(3, (n,)), **kwargs)


def title_of(ax) -> str:
    return ax.get_title() or ax.get_title("left")


def page_data(page: str) -> dict:
    """The data that a page carries."""
    return next(json.loads(text) for text in packed_texts(page) if text[:1] == "{")


# -- items


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 4)])
def test_a_png_holds_its_pixels(shape):
    pixels = torch.randint(256, shape, dtype=torch.uint8)
    from PIL import Image

    read = Image.open(BytesIO(png(pixels)))
    assert read.size == (7, 5)
    assert list(read.tobytes()) == pixels.flatten().tolist()


@pytest.mark.parametrize(
    "image, shape",
    [
        (torch.rand(3, 8, 6), (8, 6, 3)),
        (torch.rand(8, 6, 3), (8, 6, 3)),
        (torch.rand(1, 8, 6), (8, 6)),
        (torch.rand(8, 6), (8, 6)),
        (torch.randn(3, 8, 6), (8, 6, 3)),
        (torch.randint(256, (8, 6, 4), dtype=torch.uint8), (8, 6, 4)),
        (torch.zeros(8, 6), (8, 6)),
        (torch.full((8, 6), 7.5), (8, 6)),
        (torch.rand(3, 8, 6).half(), (8, 6, 3)),
        (torch.rand(3, 8, 6).bfloat16(), (8, 6, 3)),
        (torch.rand(8, 6, requires_grad=True), (8, 6)),
        (torch.rand(8, 6).numpy(), (8, 6)),
        (torch.randint(-3, 4, (8, 6)), (8, 6)),
    ],
)
def test_images_of_many_forms(image, shape):
    assert is_image(image)
    pixels = as_pixels(image)
    assert pixels.dtype == torch.uint8 and tuple(pixels.shape) == shape
    assert shown(image).kind == "image" and image_of(shown(image)).size == (6, 8)


def test_an_image_with_nan_and_infinity_is_shown():
    image = torch.rand(8, 8)
    image[0, 0], image[0, 1] = float("nan"), float("inf")
    assert shown(image).kind == "image"


def test_a_uint8_image_is_not_stretched():
    assert as_pixels(torch.full((4, 4), 100, dtype=torch.uint8)).unique().tolist() == [100]


def test_a_large_image_is_made_smaller_and_a_small_one_is_not():
    assert image_of(shown(torch.rand(3, 1000, 500))).size == (64, 128)
    assert image_of(shown(torch.rand(1, 10))).size == (10, 1) if is_image(torch.rand(1, 10)) else True
    assert image_of(shown(torch.rand(3, 20, 10))).size == (10, 20)


def test_objects_of_pil_are_images():
    from PIL import Image

    assert shown(Image.new("L", (4, 9))).size == (4, 9)


@pytest.mark.parametrize(
    "value", [torch.zeros(0), torch.zeros(0, 4, 4), torch.zeros(2, 3, 4, 5), None, object(), [], {}, 3, 2.5, "x", b"x"]
)
def test_anything_is_shown_somehow(value):
    parts = shown_parts((value,))
    card = Card(0, parts, "a", "b", True, 0.5, 0.9)
    assert cards_html([card]) and cards_text([card])


def test_a_data_frame_row_is_a_row():
    class Series:
        "As in pandas"

        index = ["age", "name"]

        def to_dict(self):
            return {"age": 31, "name": "Ada"}

    assert shown(Series()).value == {"age": "31", "name": "Ada"}


def test_a_dataclass_is_a_row():
    @dataclass
    class Person:
        age: int
        name: str

    assert shown_parts(Person(31, "Ada"))[0].value == {"age": "31", "name": "Ada"}


def test_token_ids_are_read_by_function_list_and_tokenizer():
    class Tokenizer:
        def decode(self, ids):
            return "-".join(map(str, ids))

    ids = torch.tensor([2, 1, 0, 0])
    assert shown(ids, decode=["<pad>", "b", "a"]).value == "a b"
    assert shown(ids, decode=lambda ids: str(len(ids))).value == "4"
    assert shown(ids, decode=Tokenizer()).value == "2-1-0-0"
    assert shown([2, 1], decode=["<pad>", "b", "a"]).value == "a b"


def test_a_function_of_yours_gets_all_inputs():
    seen = []
    parts = shown_parts((torch.zeros(2), torch.ones(3)), lambda inputs: seen.append(inputs) or "words")
    assert len(seen[0]) == 2 and parts[0].value == "words" and len(parts) == 1


def test_columns_of_another_length_are_not_used():
    assert list(shown(torch.zeros(3), columns=["a", "b"]).value) == ["x0", "x1", "x2"]


@pytest.mark.parametrize("columns", [["a"], ["a", "b", "c", "d"], [], "abc", 7])
def test_columns_that_are_passed_have_a_name_for_each_number(columns):
    learn = learner(torch.rand(6, 3), torch.zeros(6, dtype=torch.long))
    error, said = (ValueError, "but a row has 3 numbers") if isinstance(columns, list) else (TypeError, "should be a list of names")
    for call in (learn.interpret, learn.show_results):
        with pytest.raises(error, match=said):
            call(columns=columns)
    assert list(learn.interpret(columns=("a", "b", "c")).found.parts(0)[0].value) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "card",
    [
        Card(0, [shown(EVIL)], EVIL, EVIL, True),
        Card(0, [shown({EVIL: EVIL})], EVIL, EVIL, False),
        Card(0, [shown(torch.rand(4, 4))._replace(name=EVIL)], EVIL, EVIL, True),
        Card(0, [shown(torch.rand(4), columns=[EVIL, "b", "c", "d"]), shown(EVIL)], EVIL),
    ],
)
def test_text_is_escaped(card):
    assert "<script" not in cards_html([card])


def test_wrong_ones_stand_out_without_color():
    right, wrong = (Card(0, [shown(torch.rand(4, 4))], "a", "b", wrong) for wrong in (False, True))
    for text in (cards_html([right]), cards_text([right])):
        assert "✓ a" in text and "✗" not in text
    assert "✗ a" in cards_html([wrong]) and 'class="card wrong"' in cards_html([wrong])
    figure = cards_figure([right, wrong])
    assert "✗" in title_of(figure.axes[1]) and figure.axes[1].spines["left"].get_linestyle() == "--"


def test_a_figure_of_texts_reads_no_formulas():
    figure = cards_figure([Card(0, [shown("costs $5 and $6_$")], "a $x_", "b")])
    figure.savefig(BytesIO())


def test_brief_names_shapes_and_writes_out_short_lists():
    assert brief(torch.zeros(3, 4, 5)) == "tensor 3x4x5" and brief([1] * 9) == "list" and brief(True) == "True"


# -- scores


def test_scores_equal_those_of_scikit_learn():
    from sklearn import metrics as sk

    for seed in range(20):
        torch.manual_seed(seed)
        n = int(torch.randint(2, 7, ()))
        actual, predicted = torch.randint(n, (40,)), torch.randint(n, (40,))
        matrix = confusion_matrix(actual, predicted, n)
        assert matrix.tolist() == sk.confusion_matrix(actual, predicted, labels=range(n)).tolist()
        names = [f"c{i}" for i in range(n)]
        ours = class_scores(matrix, names)
        theirs = sk.classification_report(actual, predicted, labels=range(n), target_names=names, output_dict=True, zero_division=0)
        for name, row in [*((name, name) for name in names), ("mean", "macro avg"), ("weighted mean", "weighted avg")]:
            assert close(
                [ours[name][k] for k in ("precision", "recall", "f1", "items")],
                [theirs[row][k] for k in ("precision", "recall", "f1-score", "support")],
            )


def test_label_and_value_scores_equal_those_of_scikit_learn():
    from sklearn import metrics as sk

    torch.manual_seed(0)
    actual, predicted = torch.rand(50, 3) > 0.5, torch.rand(50, 3) > 0.6
    theirs = sk.classification_report(actual, predicted, output_dict=True, zero_division=0)
    assert close(label_scores(actual, predicted, "abc")["c"]["precision"], theirs["2"]["precision"])
    assert close(label_scores(actual, predicted, "abc")["weighted mean"]["f1"], theirs["weighted avg"]["f1-score"])
    y, guess = torch.randn(50, 2), torch.randn(50, 2)
    ours = value_scores(y, guess, ["a", "b"])
    assert close([ours[k]["R²"] for k in "ab"], sk.r2_score(y, guess, multioutput="raw_values"))
    assert close([ours[k]["mean abs. error"] for k in "ab"], sk.mean_absolute_error(y, guess, multioutput="raw_values"))
    assert close([ours[k]["root mean sq. error"] for k in "ab"], sk.root_mean_squared_error(y, guess, multioutput="raw_values"))


@pytest.mark.parametrize("n_bins", [1, 3, 5, 10, 15, 100])
def test_calibration_equals_that_of_scikit_learn(n_bins):
    from sklearn.calibration import calibration_curve

    torch.manual_seed(0)
    prob = torch.cat([torch.rand(200), torch.arange(0, 11) / 10, torch.tensor([0.0, 1.0])])
    true = torch.rand(len(prob)) < prob
    true[0], true[1] = True, False
    share, mean = calibration_curve(true, prob.double(), n_bins=n_bins)
    ours = calibration(true, prob, n_bins)
    assert ours.prob_true.tolist() == pytest.approx(share.tolist()) and ours.prob_pred.tolist() == pytest.approx(mean.tolist())
    assert int(ours.counts.sum()) == len(prob)


def test_dollars_in_a_class_name_are_no_math():
    fig = calibration_figure(calibration(torch.ones(4), torch.full((4,), 0.9)), r"class $\frac{$ of 5%")
    fig.draw_without_rendering()
    assert fig.axes[0].get_xlabel() == r"probability of the class $\frac{$ of 5%"


def test_the_calibration_error_of_sure_and_wrong_is_one():
    assert calibration(torch.zeros(4), torch.ones(4)).error == 1 and calibration(torch.ones(4), torch.ones(4)).error == 0


def test_ignored_targets_are_not_counted():
    assert int(confusion_matrix(torch.tensor([0, -100, 1]), torch.tensor([0, 1, 1]), 2).sum()) == 2


def test_many_classes_are_cut_to_those_with_errors():
    matrix = torch.diag(torch.full((100,), 5))
    matrix[40, 70] = 3
    assert most_in_error(matrix, 2) == [40, 70]
    assert confused_pairs(matrix, [str(i) for i in range(100)]) == [("40", "70", 3)]


# -- which task


@pytest.mark.parametrize(
    "pred, y, loss, task",
    [
        ((4, 3), torch.tensor([0, 1, 2, 0]), nn.CrossEntropyLoss(), "classes"),
        ((4, 3), torch.tensor([[0], [1], [2], [0]]), None, "classes"),
        ((4, 3), torch.rand(4, 3), nn.CrossEntropyLoss(), "classes"),
        ((4, 3), torch.tensor([0, 1, 2, 0]), nn.NLLLoss(), "classes"),
        ((4,), torch.ones(4), nn.BCEWithLogitsLoss(), "classes"),
        ((4, 1), torch.ones(4, 1), nn.BCELoss(), "classes"),
        ((4, 3), torch.ones(4, 3), nn.functional.binary_cross_entropy_with_logits, "labels"),
        ((4, 3), torch.ones(4, 3) > 0, None, "labels"),
        ((4, 1), torch.ones(4, 1), nn.MSELoss(), "values"),
        ((4, 1), torch.ones(4), nn.L1Loss(), "values"),
        ((4, 3), torch.ones(4, 3), nn.MSELoss(), "values"),
        ((4, 1), torch.ones(4).long(), nn.MSELoss(), "values"),
        ((4, 3, 8, 8), torch.ones(4, 8, 8).long(), nn.CrossEntropyLoss(), "maps"),
        ((4, 1, 8, 8), torch.ones(4, 1, 8, 8), nn.MSELoss(), "maps"),
        ((4, 3, 8), torch.ones(4), None, "other"),
        ((4, 2), torch.ones(4), nn.GaussianNLLLoss(), "other"),
    ],
)
def test_the_task_is_told_by_shapes_and_loss(pred, y, loss, task):
    assert task_of(torch.zeros(pred), (y,), loss) == task


# -- predictions


def test_predictions_equal_those_of_get_preds_for_every_loss():
    x, label, yes, value = torch.randn(20, 4), torch.randint(3, (20,)), torch.randint(2, (20,)).float(), torch.randn(20, 3)
    cases = [
        (nn.CrossEntropyLoss(), label, nn.Linear(4, 3)),
        (nn.NLLLoss(), label, nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))),
        (nn.BCEWithLogitsLoss(), yes, nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))),
        (nn.BCELoss(), yes, nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0))),
        (nn.MSELoss(), value, nn.Linear(4, 3)),
    ]
    for loss, y, model in cases:
        learn = learner(x, y, loss, model)
        found = learn.interpret()
        with torch.no_grad():
            raw = model(x)
            each = type(loss)(reduction="none")(raw, y)
        assert close(found.losses, each.flatten(1).mean(1) if each.ndim > 1 else each), loss
        if found.task == "classes":
            assert close(found.preds.sum(1), torch.ones(20))
            want = raw.argmax(1) if raw.ndim > 1 else (raw > (0.5 if isinstance(loss, nn.BCELoss) else 0)).long()
            assert torch.equal(found.decoded, want) and torch.equal(found.targets, y.long())
        assert loss.reduction == "mean"


def test_a_loader_that_shuffles_is_gone_through_in_order():
    learn = classifier()
    a, b = learn.interpret(dl="train"), learn.interpret()
    assert close(a.preds, b.preds) and torch.equal(a.targets, b.targets)
    worst = int(a.top_losses(1).indices[0])
    assert torch.equal(a.found.items[worst][0], learn.dls.valid.dataset[worst][0])


def test_a_part_of_a_dataset_is_found_again():
    learn = classifier()
    data = learn.dls.valid.dataset
    for dl, places in [
        (DataLoader(data, 4, sampler=SubsetRandomSampler([9, 3, 27, 5])), [3, 5, 9, 27]),
        (DataLoader(Subset(data, [8, 2, 4]), 2), [8, 2, 4]),
        (DataLoader(data, 8, shuffle=True, drop_last=True), range(30)),
    ]:
        found = learn.interpret(dl=dl)
        assert len(found) == len(places)
        for i, place in enumerate(places):
            assert torch.equal(found.found.items[i][0], data[place][0]) and found.targets[i] == data[place][1]


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


@pytest.mark.parametrize("kind", ["batches", "stream", "generator", "batch sampler", "whole batches"])
def test_items_of_other_loaders(kind):
    learn = classifier()
    data = learn.dls.valid.dataset
    batches = list(learn.dls.valid)
    dl = {
        "batches": batches,
        "stream": DataLoader(Stream(data), 8),
        "generator": Batches(lambda: iter(batches)),
        "batch sampler": DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, False), collate_fn=None),
        "whole batches": DataLoader([tuple(b) for b in batches], batch_size=None),
    }[kind]
    found = learn.interpret(dl=dl)
    assert len(found) == 30
    learn.model.eval()
    for i in (0, 7, 8, 29):
        with torch.no_grad():
            pred = learn.model(found.found.items[i][0][None]).softmax(1)[0]
        assert close(pred, found.preds[i])
    learn.show_results(3, dl=dl)


def test_inputs_of_a_stream_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("cbnb.callbacks.interpret._KEPT_BYTES", 10 * 16)
    learn = classifier()
    found = learn.interpret(dl=DataLoader(Stream(learn.dls.valid.dataset), 8))
    assert len(found) == 30 and len(found.found.items.kept) == 10
    assert found.found.card(20).parts[0].value == "not kept" and found.found.card(3).parts[0].kind == "row"
    assert {item["n"] for item in page_data(found.page(live=True))["items"]} <= set(range(10))


def test_items_are_fetched_when_they_are_shown_and_not_before():
    class Counting(TensorDataset):
        asked = []

        def __getitem__(self, i):
            self.asked.append(i)
            return super().__getitem__(i)

    torch.manual_seed(0)
    data = Counting(torch.randn(200, 4), torch.randint(3, (200,)))
    learn = Learner(
        DataLoaders(DataLoader(data, 50), DataLoader(data, 50), device="cpu"), nn.Linear(4, 3), nn.CrossEntropyLoss(), default_cbs=False
    )
    data.asked.clear()
    learn.show_results(5)
    assert len(data.asked) <= 10 and set(data.asked) == {0, 40, 80, 120, 160}
    interp = learn.interpret()
    data.asked.clear()
    interp.plot_top_losses(3)
    assert data.asked == interp.top_losses(3).indices.tolist()


def test_dict_batches_and_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 3)

        def forward(self, image, age):
            return self.lin(image.flatten(1)) + age[:, None]

    items = [dict(image=torch.rand(2, 2), age=torch.tensor(float(i)), label=i % 3) for i in range(12)]
    dl = DataLoader(items, 4)
    learn = Learner(DataLoaders(dl, dl, targets="label", device="cpu"), Two(), nn.CrossEntropyLoss(), default_cbs=False)
    card = learn.interpret().found.card(5)
    assert [part.kind for part in card.parts] == ["image", "row"] and card.parts[1].value == {"age": "5"}
    learn.show_results()


def test_several_outputs_and_maps_fall_back_to_words():
    x = torch.rand(8, 1, 6, 6)
    learn = learner(x.flatten(1), torch.randint(2, (8,)), model=nn.Linear(36, 2))
    learn.dls = DataLoaders([(x, (x[:, 0] > 0.5).long())], [(x, (x[:, 0] > 0.5).long())], device="cpu")
    learn.model = nn.Conv2d(1, 2, 1)
    found = learn.interpret()
    assert found.task == "maps" and re.fullmatch(r"[\d.]+% of 6x6 right", found.found.card(0).predicted)
    assert found.losses.shape == (8,) and "6x6" in found.found.card(0).actual
    learn.show_results(2)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(36, 2)

        def forward(self, x):
            return self.a(x.flatten(1)), self.a(x.flatten(1))

    learn = Learner(DataLoaders([(x, x)], [(x, x)], device="cpu"), Pair(), lambda pred, y: pred[0].sum(), default_cbs=False)
    found = learn.interpret()
    assert found.task == "other" and found.found.card(0).predicted.startswith("[") and len(found.losses) == 8
    with pytest.raises(ValueError, match="this interpretation has task='other'"):
        found.confusion_matrix()
    assert found.page(live=True) and repr(found)
    y = torch.randint(2, (8,))
    found = learn.interpret(dl=[(x, y)], act=lambda pred: pred[0].softmax(1))
    assert found.task == "classes" and found.preds.shape == (8, 2) and int(found.confusion_matrix().sum()) == 8


def test_a_loader_without_targets():
    learn = classifier()
    learn.show_results(3, dl=[(torch.randn(5, 4),)])
    found = predictions(learn, [(torch.randn(5, 4),)])
    assert found.targets is None and found.card(0).actual is None and found.card(0).wrong is None
    with pytest.raises(ValueError, match="this loader has no targets"):
        learn.interpret(dl=[(torch.randn(5, 4),)])


def test_texts_are_shown_as_the_dataset_has_them(capsys):
    texts = [("a good film", 1), ("a bad film", 0)] * 4
    words = {w: i for i, w in enumerate(["a", "good", "bad", "film"])}

    def as_batch(items):
        return torch.tensor([[words[w] for w in text.split()] for text, _ in items]), torch.tensor([y for _, y in items])

    dls = DataLoaders.from_datasets(texts, texts, bs=4, collate_fn=as_batch, num_workers=0, device="cpu")
    learn = Learner(dls, nn.Sequential(nn.EmbeddingBag(4, 8), nn.Linear(8, 2)), nn.CrossEntropyLoss(), default_cbs=False)
    learn.show_results(2, classes=["bad", "good"])
    assert "a good film" in capsys.readouterr().out
    assert [learn.interpret().found.card(i).parts[0].value for i in (0, 1)] == ["a good film", "a bad film"]


# -- names


def test_names_are_found_where_libraries_keep_them():
    for holder in ("vocab", "classes", "target_names"):
        learn = classifier()
        setattr(learn.dls.valid.dataset, holder, ("x", "y", "z"))
        assert learn.interpret().classes == ["x", "y", "z"]
        assert learn.interpret(dl=DataLoader(Subset(learn.dls.valid.dataset, range(5)))).classes == ["x", "y", "z"]
        assert learn.interpret(classes={0: "p", 1: "q", 2: "r"}).classes == ["p", "q", "r"]
    learn = classifier()
    learn.dls.valid.dataset.vocab = ["<pad>", "the", "film", "good", "bad"]  # of the words, so not of the classes
    assert learn.interpret().classes == ["0", "1", "2"]


def test_a_wrong_number_of_names_is_an_error():
    learn = classifier()
    with pytest.raises(ValueError, match="has no name for class 2: pass a dict whose keys are the numbers 0 to 2"):
        learn.interpret(classes={0: "a", 1: "b"})
    with pytest.raises(TypeError, match="classes='cats' should be a list of names"):
        learn.interpret(classes="cats")
    for names in (["a", "b"], list("abcd")):
        with pytest.raises(ValueError, match=f"classes has {len(names)} names, but there are 3 classes"):
            learn.interpret(classes=names)
        with pytest.raises(ValueError, match="one name for each"):
            class_names(learn, learn.dls.valid, 3, names)


# -- nothing changes


def test_nothing_of_the_learner_changes():
    class Moody(Callback):
        def __init__(self):
            self.events = []

        def before_fit(self):
            self.events.append(self.learn.purpose if hasattr(self.learn, "purpose") else "?")

    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(30, 4), torch.randint(3, (30,)))
    train = DataLoader(data, 8, shuffle=True, generator=generator)
    for call in (
        lambda: learn.show_results(),
        lambda: learn.interpret(),
        lambda: learn.interpret(dl="train"),
        lambda: learn.show_results(dl="train"),
    ):
        learn = digits_learner(n=200)
        learn.fit(1)
        learn.model.train()
        learn.dls.train.generator = generator
        before = torch.get_rng_state(), generator.get_state(), [str(cb) for cb in learn.cbs], len(learn.recorder.history)
        weights = [p.clone() for p in learn.model.parameters()]
        values = list(learn.recorder.values)
        call()
        after = torch.get_rng_state(), generator.get_state(), [str(cb) for cb in learn.cbs], len(learn.recorder.history)
        assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1]) and before[2:] == after[2:]
        assert learn.model.training and list(learn.recorder.values) == values
        assert all(torch.equal(a, b) and b.grad is not None or b.grad is None for a, b in zip(weights, learn.model.parameters()))
        assert learn.loss_func.reduction == "mean"
    assert train is not None


def test_a_dataset_that_draws_random_numbers_leaves_the_state_alone():
    class Noisy(TensorDataset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x + torch.randn(4), y

    data = Noisy(torch.randn(30, 4), torch.randint(3, (30,)))
    dl = DataLoader(data, 8)
    learn = Learner(DataLoaders(dl, dl, device="cpu"), nn.Linear(4, 3), nn.CrossEntropyLoss(), default_cbs=False)
    state = torch.get_rng_state()
    learn.show_results(3)
    interp = learn.interpret()
    interp.plot_top_losses(3)
    interp.page(live=True)
    assert torch.equal(state, torch.get_rng_state())


def test_an_error_in_the_model_leaves_the_learner_usable():
    learn = classifier()
    learn.model, good = nn.Linear(5, 3), learn.model
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        learn.interpret()
    assert torch.equal(state, torch.get_rng_state()) and learn.loss_func.reduction == "mean"
    learn.model = good
    learn.interpret()


def test_interpret_within_a_fit():
    class Look(Callback):
        found = None

        def after_epoch(self):
            Look.found = self.learn.interpret()

    learn = classifier()
    learn.fit(2, cbs=Look())
    assert len(Look.found) == 30 and close(Look.found.preds, learn.interpret().preds)


def test_half_precision_gives_plain_numbers():
    learn = classifier(cbs=MixedPrecision("bf16"))
    found = learn.interpret()
    assert found.preds.dtype == torch.float32 and found.confusion_matrix().sum() == 30
    assert found.page(live=True)


# -- interpretation


def test_top_losses_from_both_ends():
    interp = classifier().interpret()
    assert interp.top_losses().values.tolist() == sorted(interp.losses.tolist(), reverse=True)
    assert interp.top_losses(4, largest=False).values.tolist() == sorted(interp.losses.tolist())[:4]
    assert len(interp.top_losses(1000).indices) == 30
    with pytest.raises(ValueError, match="k=0"):
        interp.top_losses(0)


def test_a_nan_is_the_highest_loss():
    learn = classifier()
    learn.dls.valid.dataset.tensors[0][7] = float("nan")
    interp = learn.interpret()
    assert int(interp.top_losses(1).indices[0]) == 7
    data = page_data(interp.page(live=True))
    assert any(item["n"] == 7 for item in data["items"])


def test_a_loss_that_cannot_be_taken_apart_leaves_a_note():
    def of_pairs(pred, y):
        if len(pred) < 2:
            raise ValueError("there is no pair")
        return nn.functional.cross_entropy(pred, y)

    for loss in (of_pairs, lambda pred, y, reduction="mean": of_pairs(pred, y)):
        interp = classifier(loss=loss).interpret()
        assert interp.losses is None and "loss for each item" in interp.found.note
        with pytest.raises(ValueError, match="there are no losses to sort: .*loss for each item"):
            interp.plot_top_losses()
        assert "no losses" in repr(interp) and "No losses" in interp.page()
        assert page_data(interp.page(live=True))["items"][0]["l"] is None
        assert interp.confusion_matrix().sum() == 30
        with pytest.raises(ValueError, match="act="):
            interp.calibration()


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="there is no validation data.*dl='train'"):
        line_learner(valid=False).interpret()
    wave = wave_learner()
    interp = wave.interpret()
    for call in (interp.confusion_matrix, interp.most_confused, interp.calibration, interp.plot_confusion_matrix, interp.plot_calibration):
        with pytest.raises(ValueError, match="but this model predicts values: see plot_predictions"):
            call()
    interp = classifier().interpret()
    for call in (interp.residuals, interp.plot_residuals, interp.plot_predictions):
        with pytest.raises(ValueError, match="but this model predicts classes: see plot_confusion_matrix"):
            call()
    with pytest.raises(ValueError, match="there is no output 1"):
        wave.interpret().plot_residuals(output=1)
    with pytest.raises(ValueError, match="task='boxes' should be"):
        wave.interpret(task="boxes")
    with pytest.raises(ValueError, match="max_n=0"):
        wave.show_results(0)
    with pytest.raises(TypeError, match="max_n"):
        wave.show_results(n=3)


def test_two_classes_are_calibrated_by_the_second():
    from sklearn.calibration import calibration_curve

    torch.manual_seed(0)
    x = torch.randn(200, 4)
    for y, loss, model in [
        ((x[:, 0] > 0).long(), nn.CrossEntropyLoss(), nn.Linear(4, 2)),
        ((x[:, 0] > 0).float(), nn.BCEWithLogitsLoss(), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))),
    ]:
        interp = learner(x, y, loss, model).interpret()
        share, mean = calibration_curve(y, interp.preds[:, 1].double(), n_bins=6)
        assert close(interp.calibration(6).prob_true, share) and close(interp.calibration(6).prob_pred, mean)
        assert interp.confusion_matrix().shape == (2, 2)


def test_figures_are_returned_and_drawn_into_axes():
    from matplotlib.figure import Figure

    interp, values = classifier().interpret(), wave_learner().interpret()
    for plot in (
        interp.plot_confusion_matrix,
        interp.plot_calibration,
        interp.plot_top_losses,
        values.plot_predictions,
        values.plot_residuals,
    ):
        fig = plot(return_fig=True)
        assert isinstance(fig, Figure) and fig.axes
        fig.savefig(BytesIO())
    for plot in (interp.plot_confusion_matrix, interp.plot_calibration, values.plot_predictions, values.plot_residuals):
        ax = Figure().subplots()
        assert plot(ax=ax) is ax.figure and title_of(ax)


def test_the_numbers_in_the_figure_are_those_of_the_matrix():
    interp = classifier(n=300).interpret()
    fig = interp.plot_confusion_matrix(return_fig=True)
    drawn = {(round(t.get_position()[1]), round(t.get_position()[0])): int(t.get_text()) for t in fig.axes[0].texts}
    matrix = interp.confusion_matrix()
    assert drawn == {(i, j): int(matrix[i, j]) for i in range(3) for j in range(3) if matrix[i, j]}
    shares = [float(t.get_text()) for t in interp.plot_confusion_matrix(normalize=True, return_fig=True).axes[0].texts]
    assert sum(shares) == pytest.approx(3, abs=0.03)


def test_the_names_of_fastai():
    learn = classifier()
    interp = ClassificationInterpretation.from_learner(learn)
    assert isinstance(interp, Interpretation) and len(interp) == 30
    assert len(ClassificationInterpretation.from_learner(learn, ds_idx=0)) == 30
    assert interp.most_confused() == learn.interpret().most_confused()


# -- the page


def test_the_page_carries_data_and_escapes_names():
    interp = classifier(n=100).interpret(classes=[EVIL, "b", "c"])
    assert EVIL not in interp.page() and EVIL not in interp.page(live=True)
    data = page_data(interp.page(live=True))
    matrix = interp.confusion_matrix()
    assert data["classes"][0] == EVIL and data["total"] == 100  # the script sets it as text
    assert all(EVIL not in item["h"] for item in data["items"])
    assert {(int(i), int(j)): n for i, row in data["counts"].items() for j, n in row.items()} == {
        (i, j): int(matrix[i, j]) for i in range(3) for j in range(3) if matrix[i, j]
    }
    for item in data["items"]:
        assert item["a"] == interp.targets[item["n"]] and item["p"] == interp.decoded[item["n"]] and item["w"] == (item["a"] != item["p"])


def test_the_page_has_items_of_every_cell_and_says_what_it_leaves_out():
    interp = classifier(n=500).interpret()
    data = page_data(interp.page(max_items=40, live=True))
    assert len(data["items"]) == 40 and "40 of 500 items" in data["note"]
    seen = {(item["a"], item["p"]) for item in data["items"]}
    assert seen == {(i, j) for i in range(3) for j in range(3) if interp.confusion_matrix()[i, j]}
    assert int(interp.top_losses(1).indices[0]) in {item["n"] for item in data["items"]}


def test_a_page_of_large_images_stays_small():
    torch.manual_seed(0)
    x = torch.rand(300, 3, 128, 128)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    data = TensorDataset(x, torch.randint(3, (300,)))
    dl = DataLoader(data, 50)
    interp = Learner(DataLoaders(dl, dl, device="cpu"), model, nn.CrossEntropyLoss(), default_cbs=False).interpret()
    assert len(interp.page(live=True)) < 1_000_000
    assert 1 <= len(page_data(interp.page(live=True))["items"]) < 200


def test_many_classes_on_a_page():
    torch.manual_seed(0)
    x = torch.randn(400, 4)
    interp = learner(x, torch.randint(60, (400,)), model=nn.Linear(4, 60)).interpret()
    data = page_data(interp.page(live=True))
    assert len(data["ids"]) == len(data["cells"]) == 25 and len(data["classes"]) == 60
    assert "25 of 60 classes" in data["note"] and "25 of 60 classes" in interp.page()
    fig = interp.plot_confusion_matrix(max_classes=10, return_fig=True)
    assert "10 of 60 classes" in title_of(fig.axes[0])


def test_which_items_a_page_shows():
    cells = torch.tensor([0] * 50 + [1] * 2 + [2])
    losses = torch.arange(53.0)
    first = items_for_page(cells, cells > 0, losses, 6)
    assert first[:3] == [51, 52, 49] and first[3:5] == [50, 0] and len(set(first)) == 6
    assert sorted(items_for_page(cells, cells > 0, None, 1000)) == list(range(53))


def test_a_page_of_values_and_of_labels():
    data = page_data(wave_learner().interpret().page(live=True))
    assert data["picture"].count("<img") == 1 and "classes" not in data and data["items"][0]["w"] is None
    x = torch.rand(40, 2)
    interp = learner(x, (x > 0.5).float(), nn.BCEWithLogitsLoss(), nn.Linear(2, 2)).interpret(classes=["wide", "tall"])
    data = page_data(interp.page(live=True))
    assert {item["w"] for item in data["items"]} <= {True, False} and "cells" not in data
    with pytest.raises(ValueError, match="but this model predicts several labels: see report"):
        interp.confusion_matrix()


def test_the_text_form_names_errors_and_items():
    text = repr(classifier().interpret(classes=["cat", "dog", "fox"]))
    assert text.startswith("Interpretation: 30 items, 3 classes") and " taken for " in text and "✗" in text


# -- alone


def test_without_matplotlib_ipywidgets_and_numbers_of_other_libraries():
    code = """
import sys
for name in ('matplotlib', 'ipywidgets', 'IPython', 'sklearn', 'pandas', 'PIL', 'anywidget'): sys.modules[name] = None
import torch
from torch import nn
from torch.utils.data import TensorDataset
from cbnb.all import *
data = TensorDataset(torch.rand(20, 8, 8), torch.randint(3, (20,)))
learn = Learner(DataLoaders.from_datasets(data, data, device='cpu'), nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), nn.CrossEntropyLoss(), default_cbs=False)
learn.show_results(3)
interp = learn.interpret()
interp.confusion_matrix(), interp.most_confused(), interp.report(), interp.calibration(), interp.top_losses(3)
interp.plot_top_losses(2)
assert '<img' in interp.page() and '<script>' in interp.page(live=True)
print(interp)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("image 8x8") == 3 + 2 + 5


def test_nth_item_of_odd_batches():
    batch = [torch.arange(3), ["a", "b", "c"], dict(x=torch.arange(6).reshape(3, 2)), 7]
    assert str(nth_item(batch, 1, 3)) == str((torch.tensor(1), "b", {"x": torch.tensor([2, 3])}, 7))
    items = Items([(torch.arange(2), ["p", "q"])], lambda item: item)
    assert items[1][1] == "q"


def test_spread_covers_the_set():
    assert spread(10, 3) == [0, 3, 6] and spread(0, 3) == [] and spread(2, 2) == [0, 1]


def test_items_that_the_loss_ignores_are_no_errors():
    """With a positive `ignore_index`, they were counted in the confusion matrix and in `most_confused`."""
    x, y = torch.eye(3)[[0, 1, 2, 2, 1]], torch.tensor([0, 1, 2, 1, 0])
    for ignored, pairs, right in ((0, [("1", "2", 1)], 2), (-100, [("1", "2", 1), ("0", "1", 1)], 3)):
        loss = torch.nn.CrossEntropyLoss(ignore_index=ignored)
        learn = Learner(DataLoaders([(x, y)], [(x, y)], device="cpu"), torch.nn.Identity(), loss)
        interp = learn.interpret()
        assert sorted(interp.most_confused()) == sorted(pairs) and int(interp.confusion_matrix().diag().sum()) == right
        assert int(interp.confusion_matrix().sum()) == len(pairs) + right
        assert f"{right} right ({right / (len(pairs) + right):.1%})" in interp.summary()


def words_loss(pred, y, reduction="mean"):
    return nn.functional.cross_entropy(pred.mT, y, reduction=reduction)


class WordsLoss(nn.CrossEntropyLoss):
    def forward(self, pred, y):
        return nn.functional.cross_entropy(pred.mT, y, ignore_index=self.ignore_index, reduction=self.reduction)


@pytest.mark.parametrize(
    "loss, last, padding", [(words_loss, True, -100), (WordsLoss(ignore_index=0), True, 0), (nn.CrossEntropyLoss(), False, -100)]
)
def test_classes_in_the_last_dimension_are_compared_word_by_word_without_padding(loss, last, padding):
    """They were of no known form; with the same number of words and classes, the wrong dimension was compared."""
    torch.manual_seed(0)
    batches, shares = [], []
    for n_words in (6, 5):  # as many words as classes in the second batch
        y, pred = torch.randint(1, 5, (3, n_words)), torch.randn(3, n_words, 5)
        y[:, 4:] = padding
        shares += [f"{sum(int(p[t].argmax() == w[t]) for t in range(4)) / 4:.1%} of {n_words} right" for p, w in zip(pred, y)]
        batches.append((pred if last else pred.mT, y))
    learn = Learner(DataLoaders(batches, batches, device="cpu"), nn.Identity(), loss, default_cbs=False)
    found = predictions(learn)
    assert found.task == "maps" and found.preds == shares
    each = [nn.functional.cross_entropy(pred.mT if last else pred, y, ignore_index=padding, reduction="none") for pred, y in batches]
    by_hand = torch.cat([words.sum(1) / 4 for words in each])  # as for the item alone, without padding
    assert close(found.losses, by_hand) and int(learn.interpret().top_losses(1).indices) == int(by_hand.argmax())


@pytest.mark.parametrize(
    "loss, last, padding", [(words_loss, True, -100), (WordsLoss(ignore_index=0), True, 0), (nn.CrossEntropyLoss(), False, -100)]
)
def test_positions_are_counted_in_the_confusion_matrix_without_padding(loss, last, padding):
    torch.manual_seed(0)
    batches, actual, predicted = [], [], []
    for n_words in (6, 5):  # as many words as classes in the second batch
        y, pred = torch.randint(1, 5, (3, n_words)), torch.randn(3, n_words, 5)
        y[:, 4:] = padding
        actual += [int(word) for row in y for word in row[:4]]
        predicted += [int(scores.argmax()) for row in pred for scores in row[:4]]
        batches.append((pred if last else pred.mT, y))
    learn = Learner(DataLoaders(batches, batches, device="cpu"), nn.Identity(), loss, default_cbs=False)
    found = learn.interpret(classes=list("abcde"))
    theirs = sklearn.metrics.confusion_matrix(actual, predicted, labels=range(5))
    assert found.confusion_matrix().tolist() == theirs.tolist()
    report = sklearn.metrics.classification_report(
        actual, predicted, labels=range(5), target_names=list("abcde"), output_dict=True, zero_division=0
    )
    for name in "bcde":
        assert found.report()[name]["f1"] == pytest.approx(report[name]["f1-score"])
        assert found.report()[name]["precision"] == pytest.approx(report[name]["precision"])
        assert found.report()[name]["recall"] == pytest.approx(report[name]["recall"])
    assert found.report()["accuracy"]["f1"] == pytest.approx(sklearn.metrics.accuracy_score(actual, predicted))
    pairs = {("abcde"[i], "abcde"[j]): int(theirs[i, j]) for i in range(5) for j in range(5) if i != j and theirs[i, j]}
    confused = found.most_confused()
    assert {(a, p): n for a, p, n in confused} == pairs and [n for *_, n in confused] == sorted(pairs.values(), reverse=True)
    assert f"5 classes, {theirs.trace()} of 24 positions right" in repr(found)
    assert found.plot_confusion_matrix(return_fig=True) is not None
    with pytest.raises(
        ValueError,
        match="calibration is for models that predict one class for each item, but this model predicts a class for each position",
    ):
        found.calibration()


def test_labels_that_are_no_class_are_not_counted():
    """Such as 255, which a loss of one's own may ignore."""

    def without_255(pred, y):
        return nn.functional.cross_entropy(pred.mT, y, ignore_index=255)

    y, pred = torch.tensor([[0, 255, 1, 2]]), torch.eye(3)[[0, 1, 2, 2]][None]
    learn = Learner(DataLoaders([(pred, y)], [(pred, y)], device="cpu"), nn.Identity(), without_255, default_cbs=False)
    assert learn.interpret().confusion_matrix().tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_maps_of_values_have_no_confusion_matrix():
    x = torch.rand(4, 1, 6, 6)
    learn = Learner(DataLoaders([(x, x)], [(x, x)], device="cpu"), nn.Identity(), nn.MSELoss(), default_cbs=False)
    with pytest.raises(ValueError, match="but this model predicts maps of values"):
        learn.interpret().confusion_matrix()
    assert repr(learn.interpret())


def test_complex_numbers_have_no_scores():
    x = torch.randn(12, 4, dtype=torch.cfloat)
    learn = Learner(
        DataLoaders([(x, x[:, :2])], [(x, x[:, :2])], device="cpu"), nn.Linear(4, 2, dtype=torch.cfloat), lambda p, y: (p - y).abs().mean()
    )
    found = learn.interpret()
    assert found.task == "other" and "R²" not in str(found)
    expected = (learn.model(x) - x[:, :2]).abs().mean(1)
    assert torch.allclose(found.losses, expected.detach())


def test_members_of_an_ensemble_are_no_classes():
    x = torch.randn(12, 4)

    class Ensemble(nn.Linear):
        def forward(self, x):
            return super().forward(x)[..., None]

    def loss(pred, y):
        return (pred - y[:, None]).square().mean()

    learn = Learner(DataLoaders([(x, x[:, :1])], [(x, x[:, :1])], device="cpu"), Ensemble(4, 3), loss)
    assert learn.interpret().task == "other"


def test_items_whose_targets_the_collate_function_makes(capsys):
    class Model(nn.Linear):
        def forward(self, ids):
            return super().forward(ids)

    def collate(items):
        ids = torch.stack([item["ids"] for item in items])
        return dict(ids=ids, labels=ids.argmax(1))

    dl = DataLoader([dict(ids=torch.randn(3)) for _ in range(6)], 3, collate_fn=collate)
    learn = Learner(DataLoaders(dl, dl, targets="labels", device="cpu"), Model(3, 3), nn.CrossEntropyLoss())
    learn.show_results()
    assert "actual" in capsys.readouterr().out
    assert len(learn.interpret()) == 6


def test_a_label_that_the_loss_ignores_is_no_class():
    """It is larger than the numbers of the classes, and made the task "other", without a confusion matrix."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 2, generator=g), torch.randint(0, 2, (40,), generator=g)
    y[::4] = 2
    data = TensorDataset(x, y)
    for loss_func in (nn.CrossEntropyLoss(ignore_index=2), lambda pred, y: nn.functional.cross_entropy(pred, y, ignore_index=2)):
        model = nn.Linear(2, 2)
        found = Learner(DataLoaders.from_datasets(data, data, bs=16, device="cpu"), model, loss_func).interpret()
        assert found.task == "classes"
        guessed, kept = model(x).argmax(1), y != 2
        by_hand = torch.zeros(2, 2, dtype=torch.long)
        for a, b in zip(y[kept], guessed[kept]):
            by_hand[a, b] += 1
        assert torch.equal(found.confusion_matrix(), by_hand)


def test_what_interpret_is_given_by_mistake():
    data = TensorDataset(torch.randn(12, 2), torch.arange(12) % 2)
    learn = Learner(DataLoaders.from_datasets(data, data, bs=4, device="cpu"), nn.Linear(2, 2), nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match="classes=7 should be a list of names, one for each of the 2 classes"):
        learn.interpret(classes=7)
    found = learn.interpret(classes=["a\nb", "c"])
    assert found.classes == ["a b", "c"]
    with pytest.raises(IndexError, match="there is no item 9999, because there are 12 items"):
        found.show_items([3, 9999])
    found.show_items(3, return_fig=True)
