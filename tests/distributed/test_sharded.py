"""nbs/distributed/sharded.ipynb: models in parts, in 2 and 3 processes on the CPU. The processes run tests/sharded_cases.py."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import fsdp

from cbnb.callbacks.averaging import EMA
from cbnb.callbacks.compile import Compile
from cbnb.callbacks.precision import ChannelsLast
from cbnb.distributed import sharded
from cbnb.distributed.agreement import share_tensors
from cbnb.distributed.sharded import ShardedModels, blocks_of, check_sharding, full_state, is_sharded, sharded_state
from cbnb.learner import Learner
from cbnb.toy import digits_learner, line_learner, wave_learner
from processes import run

if not hasattr(fsdp, "fully_shard"):
    pytest.skip("this torch has no fully_shard", allow_module_level=True)

SCRIPT = Path(__file__).parents[1] / "sharded_cases.py"
EQUAL = "plain loss_parameters one_group classes kept foreach single fused two_opts clip clip_tensor clip_value accumulation cancels ema ema_aside".split()
OTHERS = "keeps_best sgd bf16 clip_norm overflow held put_back checkpoint ends uneven buffers policy files finds norm_layers".split()
IN_THREE = "plain clip sgd held put_back checkpoint uneven".split()


def run_cases(folder, n, names):
    """Run cases in n processes; what they found is in files."""
    return run(n, str(SCRIPT), str(folder), *names, timeout=400)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A function of the number of processes and the name of a case; all cases of a number run together, once."""
    folder, done = tmp_path_factory.mktemp("sharded"), {}

    def read(n, name):
        if n not in done:
            done[n] = run_cases(folder, n, [*EQUAL, *OTHERS] if n == 2 else IN_THREE)
        file = folder / f"{name}{n}.json"
        assert file.exists(), done[n][0].err
        return json.loads(file.read_text())

    return read


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_equal_one_with_whole_batches(found, name):
    """20 updates: weights, buffers and optimizer state."""
    assert found(2, name) < 1e-6


@pytest.mark.parametrize("name", ["plain", "clip"])
def test_three_processes_equal_one_with_whole_batches(found, name):
    assert found(3, name) < 1e-6


@pytest.mark.parametrize("n", [2, 3])
def test_an_optimizer_whose_fused_form_torch_does_not_shard(found, n):
    assert found(n, "sgd") < 1e-6


@pytest.mark.parametrize("n", [2, 3])
def test_each_process_holds_a_part(found, n):
    """Weights and both averages of AdamW; a bias with one number is held by one process."""
    held = found(n, "held")
    assert held["sharded"] and sum(held["weights"]) == held["whole"] and held["state"] == [2 * w for w in held["weights"]]
    assert held["weights"][0] - held["whole"] / n < 50


@pytest.mark.parametrize("n", [2, 3])
def test_nothing_but_the_values_outlasts_the_fit(found, n):
    """Classes, attributes, hooks, parameters and the optimizer are the same objects; two fits in a row."""
    assert found(n, "put_back") == "ok"


@pytest.mark.parametrize("n", [2, 3])
def test_a_checkpoint_continues_on_another_number_of_processes(found, n):
    """A state from n processes, in one and in n."""
    assert max(found(n, "checkpoint")) < 1e-6


def test_files_written_in_the_fit_are_whole_and_can_be_loaded_there(found):
    """`learn.save`, `learn.load` and `SaveModel` within `learn.distributed(sharded=True)`."""
    whole, from_model, from_one_process, state = found(2, "files")
    assert whole and from_model == 0 and from_one_process < 1e-5 and state < 1e-6


def test_the_best_weights_come_back(found):
    assert found(2, "keeps_best") == [True, 0]


def test_the_finder_leaves_no_trace_and_finds_the_curve_of_one_process(found):
    no_trace, difference = found(2, "finds")
    assert no_trace and difference < 1e-3


def test_a_moving_average_of_weights_and_of_buffers(found):
    """Parts of weights, and the whole means of a batch norm layer, in one average."""
    assert found(2, "norm_layers")


def test_bf16(found):
    """Autocast: the distance is that of rounding. torch's own policy gathers in bf16, and keeps float32."""
    assert found(2, "bf16") < 1e-3
    assert found(2, "policy") == ["torch.bfloat16", "torch.float32", "torch.float32"]


def test_all_processes_skip_an_update_when_one_part_overflows(found):
    assert found(2, "overflow") == [1, 32.0, False]


def test_the_gradient_norm_is_that_of_all_parts_and_no_part_outlasts_the_fit(found):
    is_part, difference = found(2, "clip_norm")
    assert not is_part and difference < 1e-9


@pytest.mark.parametrize("n", [2, 3])
def test_validation_with_a_process_that_has_no_batch(found, n):
    """The weights are whole in the block, and sharded after it."""
    assert found(n, "uneven") == [False, True, 1]


def test_buffers_are_those_of_process_0(found):
    assert found(2, "buffers") == [True, True]


def test_an_error_in_all_processes_puts_the_values_back(found):
    lost, distance, kind = found(2, "ends")
    assert not lost and distance < 1e-6 and kind == "Transformer"


def test_an_error_in_one_process_ends_the_others_and_says_that_the_weights_are_lost(tmp_path):
    ended = run_cases(tmp_path, 2, ["lost"])
    assert all(e.returncode for e in ended) and "no disk space" in (tmp_path / "lost2.1.txt").read_text()
    for rank in range(2):
        lost, is_nan, kind, seconds = json.loads((tmp_path / f"lost2.{rank}.json").read_text())
        assert lost and is_nan and kind == "Transformer" and seconds < 20


# What is refused


def ready(learn: Learner) -> Learner:
    learn.create_opt()
    return learn


def test_an_old_torch_is_refused(monkeypatch):
    monkeypatch.delattr(fsdp, "fully_shard")
    with pytest.raises(RuntimeError, match="sharded models need torch 2.6 or later, and this is"):
        ShardedModels(ready(wave_learner()))


@pytest.mark.parametrize("cb, why", [(Compile(), "would compile the exchange"), (ChannelsLast(), "have no channels-last format")])
def test_callbacks_that_need_a_model_in_one_piece_are_refused(cb, why):
    with pytest.raises(ValueError, match=f"{type(cb).__name__} does not work with a sharded model: .*{why}"):
        check_sharding(ready(wave_learner(cbs=cb)))


@pytest.mark.parametrize(
    "model, why",
    [
        (lambda: nn.Sequential(nn.EmbeddingBag(3, 1, sparse=True)), "0 has sparse gradients"),
        (lambda: nn.Sequential(nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)), "0.weight is not contiguous.*p.data.contiguous"),
        (lambda: nn.DataParallel(nn.Linear(1, 1)), "it is wrapped already"),
        (lambda: torch.compile(nn.Linear(1, 1)), "it is compiled"),
    ],
)
def test_models_that_are_refused(model, why):
    with pytest.raises(ValueError, match=f"cannot be sharded: .*{why}"):
        sharded._check_model(model())


def test_models_with_lazy_layers_are_refused_before_their_tensors_are_shared():
    with pytest.raises(ValueError, match=r"lazy layers, .*: before the fit, call learn.to_dls_device\(\)"):
        share_tensors([nn.Sequential(nn.LazyLinear(1))])


def test_single_numbers_are_refused():
    with pytest.raises(ValueError, match=r"Line cannot be sharded: the parameter a is a single number.*\(1,\)"):
        check_sharding(ready(line_learner()))


def test_an_optimizer_with_a_closure_is_refused():
    learn = ready(wave_learner(opt_func=torch.optim.LBFGS))
    with pytest.raises(TypeError, match="LBFGS needs all parameters in one process"):
        check_sharding(learn)


def test_a_step_that_computes_gradients_is_refused():
    learn = wave_learner()
    ready(other := wave_learner(train_step=lambda x, y: nn.functional.mse_loss(learn.model(x), y)))
    with pytest.raises(TypeError, match="LossStep needs the whole model"):
        check_sharding(other)


def test_models_that_share_parameters_are_refused():
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    two.weight = one.weight
    with pytest.raises(ValueError, match="Linear and Linear share the parameter weight"):
        sharded._check_params([one, two], set())


# Which layers are gathered together


def test_blocks_are_elements_of_containers_with_enough_parameters():
    layers = nn.ModuleDict({"a": nn.Linear(10, 10), "b": nn.Linear(2, 2), "c": nn.Sequential(nn.ReLU(), nn.Linear(9, 9))})
    assert blocks_of(layers, least=50) == [layers["a"], layers["c"][1]]
    assert blocks_of(layers, least=111) == []


def test_an_element_counts_only_what_is_in_no_block_inside_of_it():
    stage = nn.Module()
    stage.inner, stage.rest = nn.Sequential(nn.Linear(10, 10)), nn.Linear(9, 9)
    model = nn.Sequential(stage, nn.Linear(1, 1))
    assert blocks_of(model, least=100) == [stage.inner[0]]
    assert blocks_of(model, least=90) == [stage.inner[0], stage]


def test_blocks_by_class_and_tied_weights():
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2), nn.Linear(2, 3, bias=False))
    model[2].weight = model[0].weight
    assert blocks_of(model, [nn.Linear]) == [model[1]] and blocks_of(model, [nn.Sequential]) == []


# States of learners that are not sharded


def test_states_without_sharded_tensors_stay():
    learn = digits_learner(cbs=EMA())
    learn.fit(1)
    state = learn.state_dict()
    assert sharded_state(learn, state) is state
    assert full_state(state)["models"][0]["state"]["1.weight"] is state["models"][0]["state"]["1.weight"]
    assert not is_sharded(state) and not sharded._has_sharded(state)


def test_a_model_is_put_back_if_torch_refuses_it(monkeypatch):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shard = fsdp.fully_shard

    def fails(module, **options):
        if module is model:
            raise ValueError("no")
        module.__class__ = type("Other", (type(module),), {})
        module.noted = 1

    monkeypatch.setattr(fsdp, "fully_shard", fails)
    with pytest.raises(ValueError, match="no"):
        sharded._Sharded(model, [model[0]])
    assert type(model[0]) is nn.Linear and not hasattr(model[0], "noted") and shard is not fails


@pytest.mark.parametrize("wrong", [3, "x", nn.Linear, (3,)])
def test_what_to_shard_is_checked_at_the_call(wrong):
    with pytest.raises(TypeError, match="should be True, False or a tuple of classes"):
        line_learner().distributed(sharded=wrong).__enter__()
