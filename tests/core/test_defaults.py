"""What happens if you say nothing: defaults and orders that users rely on. A change here is a change of everybody's training."""

import inspect
from types import SimpleNamespace

import pytest

import cbnb.all as cbnb
from cbnb import metrics, optim, recorder
from cbnb.callbacks import ftrl, hooks, mixup, more_metrics, steps, stopping
from cbnb.callbacks import predictions as preds
from cbnb.dialects import fastai_v1, fastai_v1_loop, fastai_v2, mindspore_callbacks, mindspore_context
from cbnb.display import chart, dashboard, run_charts, schedules, steering
from cbnb.display import figures as plot
from cbnb.display import progress as display
from cbnb.lr import finder as lr_finder
from cbnb.lr import rules as lr_rules
from cbnb.lr import trials as lr_trials

DIALECTS = SimpleNamespace(v1=fastai_v1, v1_loop=fastai_v1_loop, v2=fastai_v2, mindspore=mindspore_callbacks, context=mindspore_context)
PLACES = [
    cbnb,
    steps,
    ftrl,
    stopping,
    preds,
    steering,
    recorder,
    metrics,
    more_metrics,
    hooks,
    optim,
    plot,
    chart,
    run_charts,
    schedules,
    lr_rules,
    lr_trials,
    lr_finder,
    mixup,
    dashboard,
    display,
    DIALECTS,
]

DEFAULTS = """
    Learner: lr=0.001, moms=(0.95, 0.85, 0.95), default_cbs=True, sanity_check=True
    Learner.fit: reset_opt=False, start_epoch=0, valid_every=1
    Learner.validate: ds_idx=1
    Learner.freeze_to: train_bn=True
    Learner.fit_one_cycle: div=25.0, div_final=100000.0, pct_start=0.25, reset_opt=False, start_epoch=0
    Learner.fit_flat_cos: div_final=100000.0, pct_start=0.75, reset_opt=False, start_epoch=0
    Learner.fit_sgdr: cycle_mult=2, reset_opt=False, start_epoch=0
    Learner.fine_tune: base_lr=0.002, freeze_epochs=1, lr_mult=100, pct_start=0.3, div=5.0
    Learner.lr_find: start_lr=1e-07, end_lr=10, num_it=100, stop_div=True, show_plot=True
    LRFinder: start_lr=1e-07, end_lr=10, num_it=100, stop_div=True, beta=0.98
    LRFind: n_batches=0, weight_norm=0.0, problem="", remark=""
    planned_run: per_update=1.0
    TrialRun: n_valid=0, stage="", each_epoch=False
    plan_trials: most=4, longest=0.4
    sweep_problem: least=15
    step_rate: share=0.01
    MultiOptimizer.zero_grad: set_to_none=True
    Learner.save: with_opt=True
    Learner.load: with_opt=True, strict=True
    Learner.get_preds: ds_idx=1, with_input=False, with_decoded=False, with_loss=False, inner=False, reorder=True
    Learner.get_preds: with_preds=True, with_targs=True, concat_dim=0, pickle_protocol=2
    Learner.predict: with_input=False
    Learner.validation_context: inner=False
    Learner.to_detach: cpu=True
    DataLoaders: path='.', device=None
    DataLoaders.from_datasets: bs=64, shuffle=True, num_workers=None, path='.'
    load_learner: cpu=True, trust=False, model=None, dls=None
    AccumMetric: to_np=False, flatten=True
    accuracy: ignore_index=-100
    error_rate: ignore_index=-100
    AvgSmoothLoss: beta=0.98
    Smoother: beta=0.98
    Recorder: add_time=True, train_metrics=False, valid_metrics=True, beta=0.98
    Run: beta=0.98
    NamedLoss: beta=0.98
    Recorder.plot: skip_start=10, skip_end=5
    Recorder.plot_losses: skip_start=0, skip_end=0
    Recorder.plot_lr: show_moms=False, skip_start=0, skip_end=0
    Recorder.plot_metrics: skip_start=0, skip_end=0
    Recorder.plot_loss: skip_start=5, with_valid=True, log=False, show_epochs=False
    OneCycle.plot: n=200
    OneCycle: div=25.0, div_final=100000.0, pct_start=0.25
    slide: lr_diff=15, thresh=0.005, adjust_value=1.0
    GradientClip: max_norm=1.0, norm_type=2.0
    GradientAccumulation: n_acc=32
    TerminateOnNaN: check_grads=False
    StopAfter: validate=True
    ShortEpoch: pct=0.01, short_valid=True
    CollectData: train=True, valid=True
    MixUp: alpha=0.4
    CutMix: alpha=1.0
    Tracker: min_delta=0.0, reset_on_fit=True
    EarlyStopping: min_delta=0.0, patience=1, reset_on_fit=True, restore=False
    SaveModel: min_delta=0.0, every_epoch=False, at_end=False, with_opt=False, reset_on_fit=True
    ReduceLROnPlateau: min_delta=0.0, patience=1, factor=10.0, min_lr=0.0, reset_on_fit=True
    GatherPredsCallback: with_input=False, with_loss=False, with_preds=True, with_targs=True, concat_dim=0, pickle_protocol=2
    save_batch: pickle_protocol=2
    joined: dim=0
    SavedBatches.load: dim=0
    FetchPredsCallback: ds_idx=1, with_input=False, with_decoded=False, reorder=True
    SavedBatches: trust=False
    Hooks: is_forward=True, detach=True, cpu=False
    find_layers: include_paramless=False
    summarized: near_zero=0.05, bins=40
    ActivationStats: with_hist=True, include_paramless=False, near_zero=0.05, bins=40
    Hook: is_forward=True, detach=True, cpu=False
    hook_output: detach=True, cpu=False, grad=False
    hook_outputs: detach=True, cpu=False, grad=False
    HookCallback: is_forward=True, detach=True, cpu=False, include_paramless=False
    TrainStep: loss_scale=1.0
    ClipStep: loss_scale=1.0, value=1.0, enabled=True
    MultiLossStep: loss_scale=1.0
    FTRL: lr=0.001, l1=0.0, l2=0.0, initial_accum=0.1, lr_power=-0.5
    envelope: n=2000
    figure: size=(6.4, 3.4), cols=1, rows=1
    legend: own=True
    epoch_ticks: n=12
    Chart: size=(1200, 300), log_x=False, log_y=False, points=400, robust=False, tools=('log_y',)
    losses_chart: skip_start=0, skip_end=0, beta=0.98
    rates_charts: show_moms=False, skip_start=0, skip_end=0
    metric_charts: skip_start=0, skip_end=0
    charts_html: columns=1, live=None
    sparkline: width=24
    Progress: training=True, share=None
    status_html: lr_scale=1.0
    OneCycleView: n=200
    v1_loop.write_line: table=False
    v1.Callback.get_state: minimal=True
    v1.CallbackHandler: beta=0.98
    v1.CallbackHandler.__call__: call_mets=True
    v1.CallbackHandler.on_train_begin: epoch=0
    v1.CallbackHandler.on_batch_begin: train=True
    v1.CallbackHandler.on_train_end: exception=False
    v1.OneCycleScheduler: moms=(0.95, 0.85), div_factor=25.0, pct_start=0.3
    v1.fit_one_cycle: max_lr=0.003, moms=(0.95, 0.85), div_factor=25.0, pct_start=0.3
    v1.LRFinder: start_lr=1e-07, end_lr=10, num_it=100, stop_div=True
    v1.lr_find: start_lr=1e-07, end_lr=10, num_it=100, stop_div=True
    v1.GradientClipping: clip=0.0
    v1.AccumulateScheduler: n_step=1, drop_last=False
    v1.StopAfterNBatches: n_batches=2
    v1.TrackerCallback.is_better: min_delta=0.0
    v1.EarlyStoppingCallback: min_delta=0.0, patience=0
    v1.ReduceLROnPlateauCallback: patience=0, factor=0.2, min_delta=0.0, min_lr=0.001
    v1.CSVLogger: append=False
    v1.Recorder: add_time=True, silent=False
    v1.Learner: true_wd=True, bn_wd=True, train_bn=True, add_time=True
    v1.Learner.clip_grad: clip=0.1
    v1.Learner.load: purge=True, remove_module=False
    v2.set_bn_eval: use_eval=True
    v2.RNNRegularizer: alpha=0.0, beta=0.0
    v2.rnn_cbs: alpha=0.0, beta=0.0
    mindspore.LossMonitor: per_print_times=1
    mindspore.TimeMonitor: data_time=False
    mindspore.save_checkpoint: integrated_save=True, async_save=False
    mindspore.CheckpointConfig: integrated_save=True, async_save=False, exception_save=False, crc_check=False, remove_redundancy=False
    mindspore.EarlyStopping: min_delta=0.0, patience=0, verbose=False, restore_best_weights=False
    context.RunContext.request_stop: training=False, validate=True
"""

# first to last: training mode, what watches for nan, what changes batches, gradients, the record, what acts on it
ORDERS = """
    SkipToEpoch -20, TrainEvalCallback -10, TerminateOnNaN -9, MixUp -5, CutMix -5, Callback 0, GradientAccumulation 6, GradientClip 11,
    Recorder 50, ParamScheduler 60, ProgressCallback 60, SaveModel 61, Steering 62, ReduceLROnPlateau 62.5, EarlyStopping 63, TorchScheduler 63, ShowGraph 65,
    ShortEpoch 90, StopAfter 90, v1_loop.V1Columns 45, v1_loop.V1Callback 55, v1_loop.V1Slots 55, v1_loop.V1Cancels 2000,
    v2.CastToTensor 9, v2.RNNRegularizer 1, context.MindSporeAdapter 1000
"""

# callbacks that act in training batches only, or not in all runs
RUNS = """
    GradientClip, GradientAccumulation, MixUp, CutMix, Mix: training batches of fit, lr_find
    ParamScheduler, OneCycle, StopAfter, TorchScheduler, ReduceLROnPlateau: training batches of fit
    LRFinder: training batches of lr_find, fit
    TrialRun: batches of lr_find
    ShortEpoch, SkipToEpoch, Tracker, EarlyStopping, Steering, SaveModel, ShowGraph: batches of fit
    BnFreeze: batches of fit, lr_find
    TerminateOnNaN, CollectData: batches of fit, validate, preds
"""


def named(name: str):
    first, *rest = name.split(".")
    found = next(vars(place)[first] for place in PLACES if first in vars(place))
    for part in rest:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("line", DEFAULTS.strip().splitlines())
def test_what_is_used_if_you_say_nothing(line):
    name, values = line.strip().split(": ")
    found = {p.name: p.default for p in inspect.signature(named(name)).parameters.values()}
    for key, value in eval(f"dict({values})").items():
        assert found[key] == value and type(found[key]) is type(value), f"{name}({key}=...)"


@pytest.mark.parametrize("line", ORDERS.replace("\n", " ").split(","))
def test_in_which_order_callbacks_are_called(line):
    name, order = line.split()
    assert named(name).order == float(order)


@pytest.mark.parametrize("line", RUNS.strip().splitlines())
def test_in_which_batches_of_which_runs_callbacks_act(line):
    names, runs = line.split(":")
    for name in names.split(","):
        cls = named(name.strip())
        assert (cls.run_train, cls.run_valid) == (True, "training" not in runs), name
        assert cls.run_in == tuple(runs.split(" of ")[1].split(", ")), name
