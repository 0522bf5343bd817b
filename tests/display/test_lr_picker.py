"""The learning rate picker, driven from Python; what a notebook shows of it, in a real kernel. Clicks on a page are in tests/browser."""

import copy
import gc
import html
import math
import pickle
import re
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

import cbnb
from cbnb.display.figures import rule_title
from cbnb.display.front_end import display_as
from cbnb.display.look import COLORS, lr_text
from cbnb.display.lr_picker import (
    LRPicker,
    Printed,
    Tee,
    advice_html,
    choices,
    epochs_box,
    first_choice,
    from_page,
    lr_slider,
    nearby,
    picker_chart,
    picker_curve,
    picker_text,
    placed,
    problem_html,
    rule_button,
    slider_range,
)
from helpers import RaiseIn, line_learner, svg_of
from test_kernel import images, kernel  # noqa: F401
from test_lr_finder import curve, made_result, regression, sweep


def drawn(picker):
    """The SVG of the picture that a picker has drawn last."""
    return svg_of(picker.chart.value)


def swept(learn=None, **kwargs):
    learn = learn or regression()
    found = sweep(learn, **kwargs)
    return learn, found


def picked(**kwargs):
    learn, found = swept(**kwargs)
    return learn, found, found.widget()


@pytest.mark.parametrize("rule", ["balanced", "valley", "slide", "minimum", "steep"])
def test_every_rule_has_a_button(rule):
    learn, found, picker = picked()
    picker.slider.value = 0.5
    picker.rules[rule].click()
    rate = choices(found)[rule]
    assert picker.lr == picker.slider.value == rate
    assert picker.rules[rule].button_style == "primary" and picker.rules[rule].icon == ("star" if rule == found.rule else "")
    assert f"chosen: {lr_text(picker.lr)}" in picker.chart.value
    assert f"cbnb-rule-{rule}" in picker.rules[rule]._dom_classes
    picker.use.click()
    assert learn.lr == rate and f"is now <b>{lr_text(learn.lr)}</b>" in picker.said.value and "before: 0.1" in picker.said.value


def test_it_starts_at_the_recommended_rate_and_gives_the_reason():
    learn, found, picker = picked()
    assert picker.lr == found.lr and found.reason in picker.advice.value and found.rule in picker.advice.value
    assert found.reason in picker.rules[found.rule].tooltip and "recommended is balanced" in picker.chart.value
    assert learn.lr == 0.1  # nothing is done before a click
    low, high = found.band
    assert (
        f"(perhaps {lr_text(low)} to {lr_text(high)})" in picker.advice.value
        and f"(perhaps {lr_text(low)} to {lr_text(high)})" in picker.chart.value
    )


def test_the_epochs_are_those_that_the_rate_is_for():
    assert [picked(n_epoch=n)[2].epochs.value for n in (12, 0.3, None)] == [12, 1, 5]


def test_the_slider_moves_the_line_and_reads_the_loss():
    learn, found, picker = picked()
    before = picker.chart.value
    i = len(found.lrs) // 2
    picker.slider.value = found.lrs[i]
    assert picker.chart.value != before and f"loss there {found.losses[i]:.4g}" in picker.chart.value
    assert all(button.button_style == "" for button in picker.rules.values())
    picker.use.click()
    assert learn.lr == picker.lr == pytest.approx(found.lrs[i])


def test_a_page_that_rounds_to_its_steps_does_not_change_a_suggestion():
    learn, found, picker = picked()
    for name, rate in found.suggestions.items():
        on_step = 10 ** (round(math.log10(rate) / picker.slider.step) * picker.slider.step)
        picker.slider.value = on_step
        assert picker.lr == rate, name
    assert nearby(0.02, [0.01, 0.03]) == 0.02 and nearby(0.02, []) == 0.02


def test_own_rules():
    def html(lrs, losses, num_it):
        return 0.125, (lrs[0], losses[0])

    html.__name__ = "<img src=x> & co"

    def negative(lrs, losses, num_it):
        return -1.0, (lrs[0], losses[0])

    def far(lrs, losses, num_it):
        return 1e4, (lrs[0], losses[0])

    learn, found = swept(suggest_funcs=(html, negative, far))
    picker = found.widget()
    assert list(picker.rules) == ["balanced", "<img src=x> & co", "negative", "far"]
    assert (
        "<img src=x" not in picker.chart.value + picker.advice.value + drawn(picker) and "&lt;img src=x&gt; &amp; co" in picker.chart.value
    )
    assert all(" " not in name and "<" not in name for name in picker.rules["<img src=x> & co"]._dom_classes)
    picker.rules["<img src=x> & co"].click()
    assert picker.lr == 0.125
    picker.rules["far"].click()
    assert picker.lr == 1e4 and "outside of the sweep" in picker.chart.value
    assert picker.rules["negative"].disabled and "no learning rate" in picker.rules["negative"].tooltip
    with pytest.raises(ValueError, match="'negative' is not a rule with a suggestion: choose '"):
        picker.choose("negative")


def test_a_reason_with_html_is_escaped():
    learn, found = swept()
    found.reason = "less <b>than</b>"
    assert "less &lt;b&gt;than" in found.widget().advice.value
    found.lr = found.recommended = None
    assert "Less &lt;b&gt;than" in found.widget().advice.value


@pytest.mark.parametrize("lr, start", [(0.3, 0.3), (2e-5, 2e-5), (slice(1e-4, 1e-2), None), ([0.1], None)])
def test_a_refusal_says_why_and_starts_at_the_learners_rate(lr, start):
    learn, found = swept(start_lr=1e-9, end_lr=1e-8)
    assert found.lr is None
    learn.lr = lr
    picker = found.widget()
    assert "No suggestion." in picker.advice.value and found.reason[1:] in picker.advice.value and picker.rules == {}
    assert picker.lr == (start or pytest.approx(10**-8.5, rel=0.5))
    picker.use.click()
    assert learn.lr == picker.lr


def test_a_sweep_without_an_update_has_a_picker():
    learn, found = swept()
    empty = cbnb.lr.finder.LRFind([], [], [], 100)
    picker = empty.widget(learn)
    assert "no update" in picker.chart.value and picker.lr == 0.1
    broken = cbnb.lr.finder.LRFind(found.lrs, *[[math.nan] * len(found.lrs)] * 2, 100)
    assert "nan from the start" in broken.widget(learn).advice.value
    picker.fit.click()
    assert "Not started" in picker.said.value and not learn.recorder.history.runs  # not at the learner's own rate, silently
    picker.slider.value = 0.05
    picker.fit.click()
    assert learn.recorder.history[-1].status == "done"


def test_the_range_holds_everything():
    lrs, losses = curve()
    found = cbnb.lr.finder.LRFind(lrs, losses, losses, 100)
    low, high = slider_range(found)
    assert low <= -7 and 10**high >= lrs[-1]
    for rate in choices(found).values():
        assert low <= math.log10(rate) <= high
    assert slider_range(found, 1e-9)[0] <= -9 and slider_range(found, 1e3)[1] >= 3
    assert 100 < len(picker_chart(found, 0.1)) < 20_000


@pytest.mark.parametrize("refused", [False, True])
def test_the_rate_that_is_used_is_that_of_the_result_too(refused):
    """The next cell, `fit_one_cycle(5, found.lr)`, ignored the choice."""
    learn, found, picker = picked(**(dict(start_lr=1e-12, end_lr=1e-9) if refused else {}))
    recommended = found.lr
    if refused:
        picker.slider.value = 0.01
    else:
        picker.choose("minimum")
    assert found.lr == picker.lr != recommended and learn.lr == 0.1  # the result follows the choice, the learner does not
    picker.use_lr()
    assert found.lr == learn.lr == picker.lr and found.recommended == recommended != found.lr
    assert "chosen by hand" in repr(found) and f"lr={lr_text(found.lr)}" in repr(found)
    again = found.widget()
    assert again.lr == picker.lr and list(again.rules) == list(picker.rules)
    assert ("recommended is balanced" in picker_text(found)) != refused and found.fig is not None


def test_suggestions_outside_of_the_band_are_grey():
    learn, found, picker = picked()
    assert found.outside and len(found.outside) < len(found.suggestions)
    assert all(("cbnb-faint" in button._dom_classes) == (name in found.outside) for name, button in picker.rules.items())
    assert all(("outside the band" in button.tooltip) == (name in found.outside) for name, button in picker.rules.items())


def test_a_fit_takes_the_rate_and_the_epochs():
    learn, found, picker = picked()
    picker.rules["steep"].click()
    picker.epochs.value = 3
    picker.fit.click()
    run = learn.recorder.history[-1]
    assert run.status == "done" and len(run.epochs) == 3
    assert 0.95 * found.steep < max(learn.recorder.lrs) <= found.steep and learn.lr == 0.1
    assert "done: 3 epochs" in picker.said.value and not picker.fit.disabled and not picker.slider.disabled


def test_controls_are_off_while_it_trains():
    learn, found, picker = picked()
    seen = []

    def look(cb):
        controls = [picker.use, picker.fit, picker.epochs, picker.slider, *picker.rules.values()]
        seen.append(all(control.disabled for control in controls) and "training: 5 epochs" in picker.said.value)
        picker.fit.click()
        seen.append(picker.said.value)

    learn.add_cb(cbnb.Callback(before_epoch=look))
    picker.fit.click()
    assert seen[::2] == [True] + [False] * 4 and "running already" in seen[1] and len(learn.recorder.history) == 1
    assert "done: 5 epochs" in picker.said.value


def test_a_running_learner_says_so():
    learn, found, picker = picked()
    said = []

    def click(cb):
        picker.fit.click()
        said.append(picker.said.value)

    learn.fit(1, cbs=cbnb.Callback(after_epoch=click))
    assert "running already (epoch 0" in said[0] and len(learn.recorder.history) == 1 and not picker.fit.disabled


def test_an_error_is_shown_and_escaped():
    learn, found, picker = picked()
    learn.add_cb(RaiseIn("after_epoch", ValueError("no <b>luck</b>")))
    picker.fit.click()
    page = picker.said.value
    assert "<b>ValueError</b>: no &lt;b&gt;luck" in page and "in RaiseIn.after_epoch, epoch 0" in page and "traceback" in page
    assert "<b>luck" not in page and learn.recorder.history[-1].status == "failed" and not learn.running
    assert not picker.busy and not picker.fit.disabled
    picker.fit.click()
    assert "done: 5 epochs" in picker.said.value


def test_an_interrupt_is_told_and_ends_the_cell():
    learn, found, picker = picked()
    learn.add_cb(RaiseIn("after_step", KeyboardInterrupt))
    with pytest.raises(cbnb.FitInterrupted):
        picker.fit.click()
    assert "stopped in epoch 0 at batch 0; learn is usable" in picker.said.value and not picker.fit.disabled


def test_a_stop_is_no_done():
    learn, found, picker = picked()
    learn.add_cb(RaiseIn("after_step", cbnb.CancelFitException, when=lambda learn: learn.train_iter == 3))
    picker.fit.click()
    assert "stopped in epoch 0 at validation batch 3; planned were 5 epochs" in picker.said.value and "done" not in picker.said.value


def test_what_callbacks_print_is_shown():
    learn, found, picker = picked()

    def say(cb):
        print("epoch", cb.epoch, "<b>")
        print("careful", file=sys.stderr)

    picker.epochs.value = 2
    out = sys.stdout
    learn.add_cb(cbnb.Callback(after_epoch=say))
    picker.fit.click()
    assert "epoch 0 &lt;b&gt;\ncareful\n" in picker.printed.value and "epoch 1 &lt;b&gt;" in picker.printed.value
    assert sys.stdout is out
    picker.epochs.value = 3000  # a long text is cut, and so are the updates
    pages = []
    picker.printed.observe(lambda change: pages.append(change["new"]), "value")
    printed = Printed(lambda page: setattr(picker.printed, "value", page))
    with printed.collect():
        for i in range(3000):
            print(f"line {i}")
    assert len(picker.printed.value) < 4500 and "…" in picker.printed.value and "line 2999</pre>" in picker.printed.value
    assert len(pages) < 300


def test_other_threads_print_where_they_did(capsys):
    printed = Printed(lambda page: None)
    with printed.collect():
        thread = threading.Thread(target=print, args=("from elsewhere",))
        thread.start()
        thread.join()
        print("from here")
    assert printed.text == "from here\n" and capsys.readouterr().out == "from elsewhere\n"


def test_two_that_collect_at_once(capsys):
    """In the order of two threads, the first ends first."""
    out, first, second = sys.stdout, Printed(lambda page: None), Printed(lambda page: None)
    one, two = first.collect(), second.collect()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    print("second")
    two.__exit__(None, None, None)
    print("nobody")
    assert (first.text, second.text) == ("", "second\n") and capsys.readouterr().out == "nobody\n"
    sys.stdout = out


class Placeable(cbnb.Callback):
    """A progress display that can be put somewhere."""

    place = None

    def __init__(self, widget):
        self.widget = widget

    @property
    def name(self):
        return "progress"

    def before_fit(self):
        if self.place is not None:
            self.place(self.widget)


def test_the_progress_of_a_fit_is_inside():
    from ipywidgets import Label

    learn, found, picker = picked()
    shown = Label("a table")
    learn.add_cb(Placeable(shown))
    picker.fit.click()
    assert picker.below.children == (shown,) and learn.progress.place is None
    picker.below.children = ()
    learn.fit(1)
    assert picker.below.children == ()


def words_in(widget):
    """What the widgets for HTML inside of a box show."""
    return str(getattr(widget, "value", "")) + "".join(map(words_in, getattr(widget, "children", ())))


def test_a_saved_notebook_keeps_the_fit_of_a_picker(monkeypatch):
    """The output in place of the picker has its rows: those so far in mid-fit, and all at the end. They were only in the widgets."""
    from cbnb.display.dashboard import Dashboard

    monkeypatch.setattr(Dashboard, "keep_first", 0.0)
    monkeypatch.setattr(Dashboard, "keep_every", 0.0)
    monkeypatch.setattr(cbnb.ProgressCallback, "every", 0.0)
    learn, found, picker = picked(learn=regression(progress=True))
    stored = []
    picker.later = SimpleNamespace(update=lambda page, raw: stored.append(page))
    seen = cbnb.Callback(before_train=lambda cb: setattr(cb.learn.progress.shown, "seen", True))
    learn.add_cb(seen)
    picker.epochs.value = 3
    picker.fit.click()
    *so_far, last = [page["text/html"] for page in stored]
    assert all(f"cbnb-later-{picker.view.model_id}" in page for page in (*so_far, last))  # the curve stays
    assert "a fit that was running when this was stored" in so_far[-1] and "train_loss" in so_far[-1]
    assert "done: 3 epochs" in last and "cbnb-so-far" not in last and stored[-1]["text/plain"].splitlines()[-1].startswith("done: 3 epochs")
    assert learn.progress.keep is None


def test_what_a_fit_leaves_stays_inside(capsys):
    learn, found, picker = picked(learn=regression(progress=True))
    capsys.readouterr()
    picker.epochs.value = 2
    picker.fit.click()
    (shown,) = picker.below.children
    assert "train_loss" in words_in(shown) and "done: 2 epochs" in words_in(shown)
    learn.add_cb(RaiseIn("after_step", ValueError("no luck")))
    picker.fit.click()
    (shown,) = picker.below.children
    assert "failed in epoch 0" in words_in(shown) and "no luck" in picker.said.value
    assert picker.printed.value == "" and capsys.readouterr().out == ""


def test_two_copies_of_one_result():
    learn, found, picker = picked()
    other = found.widget()
    other.rules["valley"].click()
    assert picker.lr == found.recommended != other.lr == found.lr == found.valley
    picker.rules["slide"].click()
    assert found.lr == picker.lr == found.slide and other.lr == found.valley


def test_after_the_fact_and_on_copies(tmp_path):
    learn, found = swept(regression(path=tmp_path))
    assert found.learn is learn and learn.lr_finder_result.widget().learn is learn
    for same in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert same.suggestions == found.suggestions and same.learn is None and same.losses == found.losses
        with pytest.raises(ValueError, match=r"found\.widget\(learn\)"):
            same.widget()
        assert same.widget(learn).lr == found.lr
        same.plot(return_fig=True)
    twin = copy.deepcopy(learn)
    assert twin.lr_finder_result.lr == found.lr and twin.lr_finder_result.widget(twin).learn is twin
    loaded = cbnb.load_learner(learn.export("x.pkl"), trust=True)
    assert loaded.lr_finder_result.lr == found.lr
    again = sweep(learn)
    assert found.learn is again.learn is learn  # the second sweep has put back a learner that had a result


def test_nothing_keeps_the_learner_alive():
    learn, found, picker = picked()
    gone = weakref.ref(learn)
    picker.use.click()
    picker.epochs.value = 1
    picker.fit.click()
    del learn
    gc.collect()
    assert gone() is None and found.learn is None
    picker.use.click()
    assert "the learner of this picker was deleted" in picker.said.value
    picker.fit.click()
    assert "the learner of this picker was deleted" in picker.said.value
    with pytest.raises(ValueError, match="the learner was deleted"):
        found.widget()


def test_plot_gives_the_picker_when_asked():
    from matplotlib.figure import Figure

    learn, found = swept()
    assert isinstance(found.plot(widget=True), cbnb.display.lr_picker.LRPicker) and isinstance(found.plot(return_fig=True), Figure)
    assert found.plot() is None and found.plot(widget=False) is None
    axes = found.fig.axes[0]
    assert found.plot(ax=axes) is axes
    with pytest.raises(ValueError, match="widget=True shows a widget"):
        found.plot(widget=True, ax=axes)
    with pytest.raises(ValueError, match="widget=True shows a widget"):
        found.plot(widget=True, return_fig=True)
    with display_as("widgets"):  # no notebook, so nothing is shown
        assert found.plot() is None


VIEW = "application/vnd.jupyter.widget-view+json"


def kinds(outputs):
    """What a saved notebook has of each output."""
    return [sorted(output.data) for output in outputs]


def test_a_notebook_without_widgets_has_one_figure(kernel):  # noqa: F811
    kernel.run("learn = line_learner(4)")
    shown, returned = kernel.run("found = learn.lr_find(stop_div=False)\nfound")
    assert sorted(shown.data) == ["image/png", "text/plain"] and sorted(returned.data) == ["text/plain"]
    assert kinds(kernel.run("found")) == kinds(kernel.run("found.widget()")) == [["image/png", "text/plain"]]
    outputs = kernel.run("found.widget()")
    assert "recommended is trials" in outputs[0].metadata["image/png"]["alt"] and "<" not in outputs[0].data["text/plain"]


def test_a_notebook_with_widgets_has_the_picker_and_a_picture(kernel):  # noqa: F811
    kernel.run(
        "learn = line_learner(4)\nset_display = __import__('cbnb.display.front_end').display.front_end.set_display\nset_display('widgets')"
    )
    try:
        two = [sorted([VIEW, "text/plain"]), ["text/html", "text/plain"]]
        outputs = kernel.run("found = learn.lr_find(stop_div=False)\nfound")
        assert kinds(outputs) == [*two, ["text/plain"]] and outputs[0].data["text/plain"] == ""
        assert kinds(kernel.run("found")) == two
        assert kinds(kernel.run("found.plot()")) == two
        assert kinds(kernel.run("p = found.plot(widget=True)")) == []
        assert kinds(kernel.run("p")) == two
        assert images(kernel.run("found.plot(widget=False)")) == 1
        assert kinds(kernel.run("__import__('copy').copy(found)")) == [["image/png", "text/plain"]]
        outputs = kernel.run("p.rules['steep'].click(); p.use.click(); p.fit.click(); print(learn.lr == found.steep)")
        assert outputs[-1].text == "True\n"
    finally:
        kernel.run("set_display(None)")


def test_a_rate_is_written_in_one_way():
    """It stood there as 0.043, 0.04294, 4.3e-02 and 4.3e-2."""
    learn, found, picker = picked()
    picker.use.click()
    rate = f"{lr_text(found.lr)}"
    assert picker.rules[found.rule].description == f"{found.rule}  {rate}" and not picker.slider.readout
    assert f"chosen: {rate}" in picker.chart.value and f"<b>{rate}</b>" in picker.advice.value
    pages = re.sub('<style>.*?</style>|svg[+]xml,[^"]*', "", picker.chart.value) + drawn(picker) + picker.advice.value + picker.said.value
    assert rate in picker.said.value and f"{found.lr:.3g}" not in pages and f"{found.lr:.1e}" not in pages


def test_the_colours_and_the_band_are_those_of_the_figure():
    learn, found, picker = picked()
    axes = found.plot(return_fig=True).axes[0]
    marks = {line.get_label().split(":")[0]: line.get_color() for line in axes.lines if ":" in str(line.get_label())}
    chart = dict(zip(choices(found), picker_curve(found).marks))
    for name in found.suggestions:
        shown = COLORS["quiet"] if name in found.outside else chart[name].color
        assert shown == marks[rule_title(name)] and chart[name].faint == (name in found.outside)
        assert re.search(rf'<circle [^>]*fill="{shown}"', drawn(picker))
        assert f">{rule_title(name)} {lr_text(found.suggestions[name])}</text>" in drawn(picker)
    assert picker_curve(found).band == found.band and 'opacity=".14"' in drawn(picker)
    assert [line.get_color() for line in axes.lines if line.get_linestyle() == "--"] == [COLORS["mark"]]
    assert [line.color for line in picker_curve(found).lines] == [COLORS["raw"], COLORS["train"]]


def test_the_live_chart_is_the_picture():
    learn, found, picker = picked()
    live, curve = picker.live.chart(), picker_curve(found, found.lr)
    assert live.marks == curve.marks and live.band == curve.band and live.cursor == curve.cursor and live.text == curve.text
    assert [line.name for line in live.lines] == ["measured", "smoothed"] and live.log_x and live.y_range == curve.y_range
    assert list(live.lines[1].ys) == pytest.approx(found.losses) and picker.live.n_sent == 1
    assert f"cbnb-slot-{picker.live.name}" in picker.chart.value and "<img" in picker.chart.value


def test_a_page_that_draws_gets_the_line_and_no_picture():
    learn, found, picker = picked()
    picker.live._receive(None, dict(type="here"), [])
    picker.live.widget._handle_msg(dict(content=dict(data=dict(method="custom", content=dict(type="here"))), buffers=[]))
    assert picker.slider.layout.display == "none"
    before, sent = picker.chart.value, []
    picker.live.widget.send = lambda message, buffers=None: sent.append(message)
    picker.slider.value = 0.02
    assert picker.chart.value == before and sent == [dict(set=dict(chosen=0.02))]
    picker.rules["valley"].click()
    assert sent[-1] == dict(set=dict(chosen=found.valley)) and len(str(sent)) < 200


def test_a_click_on_the_curve_chooses():
    learn, found, picker = picked()
    picker.live._receive(None, dict(type="here"), [])
    sent = []
    picker.live.widget.send = lambda message, buffers=None: sent.append(message)
    for x in (0.0201, 0.0234, 0.02345):
        picker.live._receive(None, dict(type="pick", x=x, done=False), [])
    assert found.lr == picker.lr == 0.023 and sent == []  # while the mouse is down, the page moves the line itself
    picker.live._receive(None, dict(type="pick", x=0.02345, done=True), [])
    assert found.lr == 0.023 and sent == [dict(set=dict(chosen=0.023))] and learn.lr == 0.1
    picker.live._receive(None, dict(type="pick", x=found.slide * 1.02, done=True), [])
    assert found.lr == found.slide and picker.rules["slide"].button_style == "primary"
    picker.live._receive(None, dict(type="pick", x=found.recommended * 0.98, done=True), [])
    assert found.lr == found.recommended and "chosen by hand" not in repr(found)


def test_a_click_during_a_fit_changes_nothing():
    learn, found, picker = picked()
    seen = []

    def click(cb):
        picker.live._receive(None, dict(type="pick", x=0.5, done=True), [])
        seen.append((found.lr, picker.lr))

    learn.add_cb(cbnb.Callback(after_epoch=click))
    picker.epochs.value = 1
    chosen = found.lr
    picker.fit.click()
    assert seen == [(chosen, chosen)]


def test_the_choice_of_an_old_picker_after_a_new_sweep():
    learn, found, picker = picked()
    picker.epochs.value = 1
    picker.fit.click()
    new = sweep(learn)
    recommended = new.lr
    picker.rules["valley"].click()
    assert found.lr == found.valley and new.lr == recommended
    picker.use.click()
    assert learn.lr == found.valley
    picker.fit.click()
    assert learn.recorder.history[-1].status == "done" and max(learn.recorder.lrs) == pytest.approx(found.valley, rel=0.05)


def test_a_result_that_is_deleted_keeps_its_picker():
    learn, found, picker = picked()
    del learn.lr_finder_result, found
    gc.collect()
    picker.rules["steep"].click()
    picker.use.click()
    assert learn.lr == picker.lr == picker.found.lr


# --- another number of epochs ---


@pytest.mark.parametrize("n_epoch", [1, 3, 20, 400])
def test_the_epochs_change_the_recommendation(n_epoch):
    learn, found, picker = picked()
    other = sweep(regression(), n_epoch=n_epoch)
    picker.epochs.value = n_epoch
    for name in ("lr", "recommended", "band", "rule", "reason", "n_epoch", "planned_steps", "estimates", "suggestions"):
        assert getattr(found, name) == getattr(other, name), name
    assert repr(found) == repr(other)
    assert picker.lr == found.lr and found.reason in picker.advice.value
    assert picker.rules["balanced"].description == f"balanced  {lr_text(found.lr)}" and found.reason in picker.rules["balanced"].tooltip
    live = picker.live.chart()
    assert live.band == found.band and live.cursor == found.lr and live.marks == picker_curve(found).marks
    assert all(("cbnb-faint" in button._dom_classes) == (name in found.outside) for name, button in picker.rules.items())
    picker.fit.click()
    assert len(learn.recorder.history[-1].epochs) == n_epoch


def test_a_choice_by_hand_stays_with_another_number_of_epochs():
    learn, found, picker = picked()
    picker.slider.value = 0.033
    before = found.recommended
    picker.epochs.value = 100
    assert found.lr == picker.lr == 0.033 and found.recommended < before and "chosen by hand" in repr(found)
    picker.choose("balanced")
    assert found.lr == found.recommended
    picker.epochs.value = 5
    assert found.lr == picker.lr == found.recommended == before


def test_trials_are_points_and_recommend_for_another_length():
    learn = regression()
    found = sweep(learn, trials=True)
    picker = found.widget()
    trials = picker_curve(found).lines[-1]
    assert trials.name == "trials" and trials.dots and trials.xs == sorted(t.lr for t in found.trials if math.isfinite(t.loss))
    low, high = picker_curve(found).y_range
    assert low < min(trials.ys)
    before = found.recommended
    picker.epochs.value = 50
    assert found.rule == "trials" and found.recommended < before and "for 50 epochs" in found.reason and "trials" in picker.advice.value


def test_a_length_that_is_not_known_changes_nothing():
    picker, learn = picker_of()
    found = picker.found
    before = repr(found), found.reason
    picker.epochs.value = 77
    assert (repr(found), found.reason) == before and not found.plan_for(3)
    learn, refused = swept(start_lr=1e-9, end_lr=1e-8)
    again = refused.widget()
    again.epochs.value = 50
    assert refused.lr is None and refused.recommended is None


def test_without_anywidget_the_slider_moves_a_picture(monkeypatch):
    monkeypatch.setattr("cbnb.display.lr_picker.has_live_charts", lambda: False)
    learn, found, picker = picked()
    assert picker.live is None and "cbnb-slot" not in picker.chart.value
    before = drawn(picker)
    picker.slider.value = 0.02
    assert drawn(picker) != before and found.lr == 0.02
    picker.epochs.value = 50
    assert drawn(picker) != before and found.lr == 0.02


# --- each part by itself ---


def fixed(lr):
    """A rule that suggests this rate."""

    def rule(lrs, losses, num_it):
        return lr, (lrs[0], losses[0])

    rule.__name__ = f"fixed_{lr}"
    return rule


def picker_of(*rates, lr=0.3, **settings):
    """A picker of a made result with these suggestions, and its learner."""
    learn = line_learner(2, lr=lr)
    return LRPicker(learn, made_result(rules=[fixed(rate) for rate in rates], **settings)), learn


def result(lrs, losses=None, **settings):
    losses = [1.0] * len(lrs) if losses is None else losses
    return cbnb.lr.finder.LRFind(lrs, losses, losses, 100, [], **settings)


def test_only_finite_numbers_above_zero_can_be_chosen():
    found = made_result(rules=[])
    found.suggestions.update(zero=0.0, below=-1.0, infinite=math.inf, nan=math.nan, true=True, text="0.1", whole=2, small=1e-9)
    assert choices(found) == dict(balanced=found.lr, whole=2.0, small=1e-9) and type(choices(found)["whole"]) is float
    found.rule = None
    assert list(choices(found)) == ["recommended", "whole", "small"]
    assert choices(result([1.0])) == {}


@pytest.mark.parametrize(
    "lrs, lr, ends",
    [
        ([1e-4, 1e-2], None, (-4.1, -1.9)),  # whole tenths, a little wider
        ([10**-3.95, 10**-2.05], None, (-4.0, -2.0)),
        ([1e-4, 1e-2], 1e-1, (-4.1, -0.9)),
        ([1e-4, 1e-2], 1e-6, (-6.1, -1.9)),
        ([1e-4, 1e-2], [1.0], (-4.1, -1.9)),
        ([1e-4, 1e-2], True, (-4.1, -1.9)),
        ([10**-2.95], None, (-3.0, -2.85)),  # at least a tenth
        ([], None, (-7.1, 1.1)),
    ],
)
def test_the_ends_of_the_slider(lrs, lr, ends):
    assert slider_range(result(lrs), lr) == pytest.approx(ends)


def test_the_first_choice():
    assert first_choice(made_result(), 0.5) == made_result().lr and first_choice(result([1e-4, 1e-2]), 0.5) == 0.5
    assert first_choice(result([1e-4, 1e-2]), [0.5]) == pytest.approx(1e-3)  # the middle


@pytest.mark.parametrize(
    "losses, low, high",
    [
        ([3.0, 2.0, 1.0, 1.0, 2.0], 0.76, 3.24),  # from 1 to 3, and 12% of 2 more
        ([2.0, 1.0, 1.0, 1.0, 20.0], 0.88, 2.6),  # what is higher than the start is cut off, four times 12% above it
        ([1.0, 2.0, 8.0, 9.0, 9.0], 0.16, 9.84),  # but not the lower half
        ([1.0, 1.0, 1.0, 9.0, 9.0], 0.9, 1.5),  # without a fall, 0.1 for 12%
        ([-1.0, -1.0, -1.0, 9.0, 9.0], -1.1, -0.5),
        ([0.0] * 5, -0.1, 0.1),
        ([math.nan, 2.0, 4.0, 4.0, 4.0], 1.76, 4.24),
    ],
)
def test_the_curve_fills_the_chart(losses, low, high):
    curve = picker_curve(result([10.0**i for i in range(-5, 0)], losses, problem="no rate"), 1e-3)
    assert curve.y_range == (pytest.approx(low), pytest.approx(high))


def test_rates_are_drawn_on_a_log_scale():
    """From 1e-7 to 10 over the width of the plot: an eighth a decade."""
    found = made_result(rules=[fixed(1e-3), fixed(1e-6)])
    curve = picker_curve(found, 1e-5)
    assert curve.log_x and curve.cursor == 1e-5 and curve.x_format == "rate" and curve.xlabel == "learning rate"
    assert {mark.name: mark.x for mark in curve.marks} == {f"{name} {lr_text(lr)}": lr for name, lr in choices(found).items()}
    assert [mark.name for mark in curve.marks if mark.strong] == [f"balanced {lr_text(found.lr)}"]
    assert [(line.name, line.faint) for line in curve.lines] == [("measured", True), ("smoothed", False)]
    page = picker_chart(found, 1e-5)
    svg = svg_of(page)
    width = float(re.search(r'<svg x="47" y="29" width="([\d.]+)"', svg)[1]) - 10  # it has 5 px more on each side
    assert f"M{width / 4:.1f},0v" in svg and svg.count("stroke-dasharray") == 1
    places = [float(x) - 52 for x in re.findall(r'<circle cx="([\d.]+)"', svg)]
    assert {round(8 * place / width, 2) for place in places} >= {4.0, 1.0}
    assert 1000 < len(page) < 30_000 and "no update" in picker_chart(result([]), 1e-5)
    long = [10 ** (i / 1000 - 4) for i in range(3000)]
    svg = svg_of(picker_chart(result(long, [1 + math.sin(i) for i in range(3000)], problem="x"), 1e-3))
    path = max(re.findall(r' d="([^"]+)"', svg), key=len)
    assert 150 < path.count("L") < 450


def test_what_the_chart_says():
    found = made_result(rules=[fixed(1e-3)])
    low, high = found.band
    assert picker_text(found) == (
        f"Loss over learning rate from 1e-7 to 10; recommended is balanced, {lr_text(found.lr)} (perhaps {lr_text(low)} to {lr_text(high)}); others: fixed_0.001 0.001"
    )
    assert picker_text(found, found.lrs[60]).endswith(f"; chosen: {lr_text(found.lrs[60])}, loss there {found.losses[60]:.4g}")
    found.band = None
    assert "perhaps" not in picker_text(found) and "perhaps" not in advice_html(found)
    assert picker_text(result([])) == f"Loss over learning rate; no suggestion: {result([]).reason}"


@pytest.mark.parametrize("lr, outside", [(0.995e-7, False), (0.985e-7, True), (10.05, False), (10.15, True), (1e-3, False)])
def test_a_rate_just_beside_the_sweep_is_not_outside(lr, outside):
    assert ("outside of the sweep" in picker_text(made_result(), lr)) == outside


class Clock:
    """A time that is set."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr("cbnb.display.lr_picker.time", made := Clock())
    return made


def test_what_is_printed_is_shown_a_few_times_a_second_and_at_the_end(clock):
    pages = []
    printed = Printed(pages.append)
    clock.now = 100.0
    with printed.collect():
        for seconds, text in ((100.0, "a"), (100.1, "b"), (100.4, "c")):
            clock.now = seconds
            assert sys.stdout.write(text) == 1 and sys.stderr.write("") == 0
        assert sys.stdout.encoding == sys.__stdout__.encoding or sys.stdout.isatty() is False  # the rest is that of the stream
    shown = [re.sub("<.*?>", "", page) for page in pages]
    assert shown[0] == "a" and "ab" not in shown and shown[-1] == "abc" and shown.count("abc") == 2
    printed.text = "\n"
    printed.update()
    assert pages[-1] == ""


def test_a_long_text_is_cut_at_a_line():
    pages = []
    printed = Printed(pages.append)
    printed.take("x" * 4000)
    assert not printed.cut and len(printed.text) == 4000
    printed.take("\nsecond\nthird")
    assert printed.cut and len(printed.text) == 4000
    printed.update()
    assert ">…\nsecond\nthird</pre>" in pages[-1]


def test_a_stream_that_was_replaced_meanwhile_is_left_alone():
    before, tee = sys.stdout, Tee(sys.stdout, [].append)
    sys.stdout = other = Tee(before, [].append)
    try:
        tee.end("stdout")
        assert sys.stdout is other
        other.end("stdout")
        assert sys.stdout is before
    finally:
        sys.stdout = before


def test_a_long_error_is_cut():
    def deep(n):
        return deep(n - 1) if n else 1 / 0

    try:
        deep(200)
    except ZeroDivisionError as e:
        e.args = ("§" * 3000,)
        e.add_note("a note with <b>")
        page = problem_html(e)
    first, more = page.split("<details>")
    assert first.count("§") == 2000 and "<br>a note with &lt;b&gt;" in first and "<b>ZeroDivisionError</b>: §" in first
    assert 3000 < len(html.unescape(more)) < 7000 and "a note with" in more


def test_the_place_of_a_progress_is_lent():
    put, seen = object(), []
    learn = SimpleNamespace(progress=SimpleNamespace(place="before"))
    with pytest.raises(ZeroDivisionError), placed(learn, put):
        seen.append(learn.progress.place)
        1 / 0
    assert seen == [put] and learn.progress.place == "before"
    for without in (SimpleNamespace(), SimpleNamespace(progress=SimpleNamespace())):
        with placed(without, put):
            assert not hasattr(getattr(without, "progress", None), "place")


def test_what_stands_on_the_buttons():
    found = made_result(rules=[fixed(1e-3), fixed(-1.0)])
    found.suggestions["<>"] = found.lr
    best, other, none, odd = (rule_button(found, name) for name in ("balanced", "fixed_0.001", "fixed_-1.0", "<>"))
    assert (best.description, best.icon, best.disabled) == (f"balanced  {lr_text(found.lr)}", "star", False)
    assert (
        best.tooltip == f"choose {lr_text(found.lr)}, the suggestion of balanced (recommended: {found.reason})"
        and "cbnb-faint" not in best._dom_classes
    )
    assert (other.description, other.icon, other.disabled) == ("fixed_0.001  0.001", "", False) and "cbnb-faint" in other._dom_classes
    assert other.tooltip == "choose 0.001, the suggestion of fixed_0.001; outside the band of rates that may be as good"
    assert (none.description, none.disabled) == ("fixed_-1.0", True) and none.tooltip.startswith(
        "fixed_-1.0 suggests -1.0, which is no learning rate"
    )
    assert "cbnb-rule-own" in odd._dom_classes and "cbnb-rule-fixed_-1-0" in none._dom_classes


def test_the_slider_is_one_of_exponents_of_ten():
    slider = lr_slider(result([1e-4, 1e-2]), 0.5)
    assert (slider.base, slider.min, slider.max, slider.step, slider.value) == (
        10,
        -4.1,
        pytest.approx(-0.3),
        0.01,
        0.5,
    ) and not slider.readout


def test_a_rate_within_half_a_step_is_meant():
    """A step is a hundredth of an exponent."""
    assert nearby(0.1, [0.1 * 10**0.0051]) == 0.1 * 10**0.0051 and nearby(0.1, [0.1 * 10**0.0052]) == 0.1
    assert nearby(0.1, [0.1 * 10**0.004, 0.1 * 10**-0.001]) == 0.1 * 10**-0.001


@pytest.mark.parametrize("n, epochs", [(None, 5), (0.2, 1), (1, 1), (2.6, 3), (10**6, 100_000)])
def test_a_box_for_epochs(n, epochs):
    box = epochs_box(n)
    assert (box.value, box.min, box.max) == (epochs, 1, 100_000)


def test_buttons_are_in_the_order_of_the_rules_with_the_recommended_one_first():
    picker, _ = picker_of(-1.0, 1e-3, 1e-2)
    assert list(picker.rules) == ["balanced", "fixed_-1.0", "fixed_0.001", "fixed_0.01"]


def test_the_rate_of_the_learner_can_be_met_again():
    picker, learn = picker_of(lr=0.3)
    picker.slider.value = 0.3 * 1.01
    assert picker.lr == 0.3
    other, _ = picker_of(lr=[0.3])
    other.slider.value = 0.3 * 1.01
    assert other.lr == 0.3 * 1.01


@pytest.mark.parametrize("lr, said", [(0.123456, "0.12"), ([0.5], "[0.5]"), (slice("<b>"), "slice(None, &#x27;&lt;b&gt;&#x27;, None)")])
def test_what_the_rate_was_before(lr, said):
    picker, learn = picker_of(lr=0.1)
    learn.lr = lr
    picker.use_lr()
    assert f"(before: {said})" in picker.said.value and '<div role="status">' in picker.said.value
    learn.lr = ["§" * 300]
    picker.use_lr()
    assert picker.said.value.count("§") == 198  # of 200 characters, with a bracket and a quotation mark


@pytest.mark.parametrize("message, page", [("comm_msg", True), ("execute_request", False), (None, False)])
def test_clicks_come_from_a_page(message, page, monkeypatch):
    parents = {} if message is None else dict(header=dict(msg_type=message))
    monkeypatch.setattr("cbnb.display.lr_picker.shell", lambda: SimpleNamespace(get_parent=lambda: parents))
    assert from_page() is page
    monkeypatch.setattr("cbnb.display.lr_picker.shell", lambda: None)
    assert from_page() is False


def test_the_second_click_of_two_is_ignored_on_a_page(monkeypatch, clock):
    picker, learn = picker_of()
    monkeypatch.setattr("cbnb.display.lr_picker.from_page", lambda: True)
    fits, runs = [], []  # a fit may be taken back

    def ends(cb):
        if cb.learn.purpose == "fit":
            clock.now += 10
            fits.append(clock.now)

    learn.add_cb(cbnb.Callback(after_fit=ends))
    for now in (0.7, 11.1, 11.3):
        clock.now = now
        picker.fit.click()
        runs.append(len(fits))
    assert runs == [1, 1, 2]
    monkeypatch.setattr("cbnb.display.lr_picker.from_page", lambda: False)
    picker.fit.click()
    assert len(fits) == 3


def test_an_interrupt_on_a_page_is_only_told(monkeypatch):
    picker, learn = picker_of()
    monkeypatch.setattr("cbnb.display.lr_picker.from_page", lambda: True)
    learn.add_cb(RaiseIn("after_step", KeyboardInterrupt))
    picker.fit.click()
    assert "stopped in epoch 0 at batch 0" in picker.said.value and not picker.busy


@pytest.mark.parametrize("n, words", [(1, "done: 1 epoch, one cycle"), (2, "done: 2 epochs, one cycle")])
def test_a_fit_of_one_epoch(n, words):
    picker, learn = picker_of()
    picker.printed.value, picker.epochs.value = "of before", n
    picker.fit.click()
    assert (
        words in picker.said.value
        and f"with a top of <b>{lr_text(picker.lr)}</b>" in picker.said.value
        and picker.printed.value != "of before"
    )


def test_a_fit_that_nobody_records():
    learn = line_learner(2, default_cbs=False, progress=True)
    picker = LRPicker(learn, made_result())
    picker.fit.click()
    assert "ended: 5 epochs" in picker.said.value


@pytest.mark.parametrize(
    "mode, front, live",
    [("widgets", "headless", True), ("plain", "jupyter", True), ("plain", "headless", False), ("widgets", "jupyter", True)],
)
def test_a_picker_is_shown_with_a_picture(mode, front, live, monkeypatch):
    picker, _ = picker_of()
    shown = []
    monkeypatch.setattr("cbnb.display.lr_picker.display_mode", lambda: mode)
    monkeypatch.setattr("cbnb.display.lr_picker.front_end", lambda: front)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw, metadata=None, display_id=None: shown.append((bundle, metadata)))
    picker.show()
    assert shown == []  # outside of notebooks
    monkeypatch.setattr("cbnb.display.lr_picker.shell", lambda: SimpleNamespace())
    for show in (picker.show, picker._ipython_display_):
        show()
    assert len(shown) == (4 if live else 2)
    (bundle, metadata), *_ = shown
    if not live:
        assert sorted(bundle) == ["image/png", "text/plain"] and "recommended is balanced" in metadata["image/png"]["alt"]
        return
    assert bundle[VIEW]["model_id"] == picker.view.model_id and bundle["text/plain"] == ""
    later, _ = shown[1]
    assert sorted(later) == ["text/html", "text/plain"] and "recommended is balanced" in later["text/plain"]
    assert f"cbnb-later-{picker.view.model_id}" in later["text/html"] and 'alt="Loss over learning rate' in later["text/html"]
    assert f"cbnb-live-{picker.view.model_id}" in picker.view._dom_classes
    closed = []
    monkeypatch.setattr(type(picker.view), "close", lambda box: closed.append(box))
    cbnb.display.lr_picker._close_all()
    assert picker.view in closed


def test_a_picker_for_another_learner():
    found, learn = made_result(), line_learner()
    picker = found.widget(learn)
    picker.use_lr()
    assert learn.lr == found.lr and picker.learn is learn and picker.found is found


def test_the_parts_of_a_picker_have_names_that_a_page_can_look_for():
    picker, _ = picker_of()
    parts = dict(use=picker.use, start=picker.fit, epochs=picker.epochs, lr=picker.slider, said=picker.said, picker=picker.view)
    assert all(f"cbnb-{name}" in part._dom_classes for name, part in parts.items())
    children = picker.view.children
    assert (
        children[:2] == (picker.advice, picker.chart)
        and children[2].children == tuple(picker.rules.values())
        and children[3] is picker.slider
    )
    assert children[4].children == (picker.use, picker.epochs, picker.fit) and children[5:] == (picker.said, picker.below, picker.printed)


def test_a_fit_that_is_worse_than_before_is_taken_back():
    """N29: one click on the button wrecked a trained model."""
    picker, learn = picker_of(lr=0.1)
    with learn.no_logging():
        learn.fit_one_cycle(20, 0.02)
    before, weights, runs = learn.validate()[0], learn.model.a.item(), len(learn.recorder.history)
    top = picker.found.lrs[-1]
    picker.slider.value = top  # an end of the sweep
    picker.fit.click()
    assert "upper end of the sweep" in picker.said.value and len(learn.recorder.history) == runs
    picker.slider.value = top / 1.1
    picker.fit.click()
    assert "taken back: 5 epochs" in picker.said.value and "a third of the rate" in picker.said.value
    assert learn.validate()[0] == before and learn.model.a.item() == weights and len(learn.recorder.history) == runs
    assert math.isclose(picker.lr, top / 3.3, rel_tol=0.03) and learn.runs.undone is not None  # it can be redone


def test_the_fit_of_a_refused_sweep_waits_for_a_choice():
    learn, found, picker = picked(start_lr=1e-12, end_lr=1e-9)
    picker.fit.click()
    assert "Not started: no rate is recommended" in picker.said.value and found.reason[:20] in picker.said.value
    assert not learn.recorder.history.runs and learn.lr == 0.1
    picker.slider.value = 0.2  # a choice, but the sweep ends far below it
    picker.fit.click()
    assert "upper end of the sweep" in picker.said.value and not learn.recorder.history.runs


@pytest.mark.parametrize("end", [0, -1])
def test_no_fit_starts_at_an_end_of_the_sweep(end):
    learn, found, picker = picked()
    picker._take(found.lrs[end])
    picker.fit.click()
    assert "end of the sweep" in picker.said.value and not learn.recorder.history.runs


def test_no_measured_loss_is_below_the_frame():
    """V8: the smoothed line lags behind, and the raw one fell out of the picture."""
    _, found, picker = picked()
    low, _ = cbnb.display.lr_picker._layout(found, found.lr)["y_range"]
    assert low < min(loss for loss in found.raw_losses if math.isfinite(loss))
    assert "minimum/10" in picker.chart.value and picker.rules["minimum"].description.startswith("minimum/10 ")
