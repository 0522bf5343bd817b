"""The arithmetic behind a suggested rate, on curves short enough to work it out by hand."""

import inspect
import math

import pytest

from cbnb.lr.rules import (
    CAP,
    EDGE,
    NEED,
    RULES,
    STEP,
    as_rule,
    as_rules,
    band_around,
    batch_noise,
    estimates,
    fall_over_noise,
    falls_surely,
    landmarks,
    last_before_rise,
    loss_at,
    minimum,
    noise_left,
    recommend_rate,
    slide,
    smoothed,
    steep,
    step_rate,
    still_low,
    sweep_problem,
    until_nan,
    valley,
    window_beta,
)

nan, inf = math.nan, math.inf


def decades(n, first=-5):
    return [10.0**i for i in range(first, first + n)]


def test_the_steepest_fall_is_per_factor_of_the_rate():
    """2 over three decades are less than 1 over one decade."""
    assert steep([1e-4, 1e-1, 1.0], [5.0, 3.0, 2.0], 3) == (0.1, (0.1, 3.0))


def test_a_tenth_of_the_rate_with_the_lowest_loss():
    assert minimum([0.1, 0.2, 0.4], [3.0, 1.0, 2.0], 3) == (0.02, (0.2, 1.0))


@pytest.mark.parametrize(
    "losses, place",
    [
        ([3, 3, 9, 8, 7, 6, 5, 4, 3, 5], 4),  # from 1, before the 9, over 7 places: a third and half a third on
        ([1, 2, 3, 2.5], 1),  # a fall of two places begins before the 3
        ([1, 2, 3], 0),  # no fall: the first of all
        ([3, 3, 3, 2], 1),  # what stays as it is does not fall
        ([9, 8, 7, 1, 6, 5, 4, 3], 3),  # seven losses fall, the 1 among them is left out
    ],
)
def test_the_valley_is_half_way_down_the_longest_fall(losses, place):
    lrs = decades(len(losses))
    assert valley(lrs, losses, len(losses)) == (lrs[place], (lrs[place], losses[place]))


FALL_AND_RISE = [4.0, 3.0, 2.0, 1.0, 1.5, 3.0]  # slopes -1, -1, -1, -0.25, 1, 1.5


@pytest.mark.parametrize("thresh, place", [(0.1, 1), (0.75, 2), (1.75, 3), (2.0, 3)])
def test_slide_stops_where_the_slopes_at_both_ends_are_equal(thresh, place):
    """Differences from the right: 1.75, 2, 0.75, 0."""
    lrs = decades(6)
    assert slide(lrs, FALL_AND_RISE, 6, lr_diff=2, thresh=thresh) == (lrs[place], (pytest.approx(lrs[place]), FALL_AND_RISE[place]))


def test_slide_looks_at_all_places_and_no_further():
    lrs = decades(4)
    assert slide(lrs, [0.0, 1.0, 4.0, 9.0], 4, lr_diff=2, thresh=0.5)[0] == lrs[0]  # slopes 1, 2, 4, 5


def test_adjust_value_moves_the_rate_and_its_point_on_the_curve():
    """From 3 at 1e-4 half a decade towards 2 at 1e-3."""
    lr, (at, loss) = slide(decades(6), FALL_AND_RISE, 6, lr_diff=2, thresh=0.1, adjust_value=10**0.5)
    assert lr == at == pytest.approx(10**-3.5) and loss == pytest.approx(2.5)


def test_slide_needs_more_points_than_its_window_is_wide():
    with pytest.raises(ValueError, match="slide needs 6 points, and there are 5"):
        slide(decades(5), [1.0] * 5, 5, lr_diff=5)
    assert slide(decades(6), [1.0] * 6, 6, lr_diff=5)[0] == decades(6)[0]


def test_slide_has_the_defaults_of_fastai():
    defaults = {name: p.default for name, p in inspect.signature(slide).parameters.items() if p.default is not p.empty}
    assert defaults == dict(lr_diff=15, thresh=0.005, adjust_value=1.0)


def test_between_two_points_the_loss_is_read_off_a_straight_line():
    lrs, losses = [0.01, 0.1, 10.0], [4.0, 2.0, 1.0]
    assert loss_at(lrs, losses, 0.001) == loss_at(lrs, losses, 0.01) == 4
    assert loss_at(lrs, losses, 10.0) == loss_at(lrs, losses, 99.0) == 1
    assert loss_at(lrs, losses, 0.1) == 2 and loss_at(lrs, losses, 1.0) == pytest.approx(1.5)
    assert loss_at(lrs, losses, 10**-1.75) == pytest.approx(3.5)


def test_smoothing_reaches_back_1_6_decades():
    tenth = [10 ** (i / 10) for i in range(21)]
    assert window_beta(tenth) == pytest.approx(1 - 1 / 16)  # 16 points are 1.6 decades
    assert window_beta([1.0, 1e3]) == 0  # sparser than that: no smoothing


def test_smoothing_is_a_weighted_mean():
    """Weights 1/3, 2/3, then 1/7, 2/7, 4/7."""
    assert smoothed([3.0, 6.0, 0.0], 0.5) == pytest.approx([3.0, 5.0, 15 / 7])
    assert smoothed([3.0, 6.0, 0.0], 0.0) == [3.0, 6.0, 0.0]
    assert smoothed([1.0, nan], 0.5)[1] > 1e29 and smoothed([1.0, inf], 0.5)[1] > 1e29


def zigzag(*steps):
    """Losses that go up and down by these steps."""
    losses = [0.0]
    for i, step in enumerate(steps):
        losses.append(losses[-1] + step * (-1) ** i)
    return losses


def test_the_noise_is_the_median_step_in_the_first_half_or_of_twelve_losses():
    unit = 1.48 / math.sqrt(2)  # a step is the difference of two losses; 1.48: for a normal distribution
    assert batch_noise(zigzag(*[1] * 9, *[2] * 10, *[100] * 20)) == pytest.approx(2 * unit)  # 19 steps in the first 20 of 40
    assert batch_noise(zigzag(*[1] * 6, *[2] * 5, 100, 100)) == pytest.approx(unit)  # 11 steps in the first 12 of 14
    assert batch_noise([nan] * 20) == 0


def test_the_noise_that_is_left_is_that_of_the_weights():
    assert noise_left(0.0, 9) == noise_left(0.9, 1) == pytest.approx(1)
    assert noise_left(0.5, 2) == pytest.approx(math.hypot(1 / 3, 2 / 3))
    assert noise_left(0.5, 3) == pytest.approx(math.hypot(1 / 7, 2 / 7, 4 / 7))


def test_a_sweep_ends_with_its_first_loss_that_is_no_number():
    assert until_nan([1, 2, 3, 4], [5.0, nan, 3.0, inf]) == ([1, 2], [5.0, nan])
    assert until_nan([1, 2, 3], [5.0, 4.0, -inf]) == ([1, 2, 3], [5.0, 4.0, -inf])
    assert until_nan([1, 2], [5.0, 4.0]) == ([1, 2], [5.0, 4.0])


def test_the_rate_at_which_one_update_moves_the_weights_by_a_hundredth():
    assert step_rate([1, 2, 3], [0.1, 0.2, 0.3], 20.0) == 3  # 0.2 is a hundredth of 20, and not more
    assert step_rate([1, 2, 3], [0.1, 0.2, 0.3], 19.0) == 2
    assert step_rate([1, 2, 3], [0.1, nan, 0.3], 20.0) == 2
    assert step_rate([1, 2, 3], [0.1, 0.2, 0.3], 100.0) == 3  # none: the last
    assert step_rate([1, 2, 3], [0.1, 0.2, 0.3], 1.0, share=0.25) == 3


# Two decades between the rates, which leaves nothing to smooth, and twelve equal losses, which leaves no noise.
# The fall is from 1 to 0 at place 17; 65% of it are done at 15; the last loss within a tenth of the fall is at 18.
FALL = [1.0] * 12 + [0.8, 0.6, 0.4, 0.2, 0.1, 0.0, 0.1, 0.2, 5.0]
RATES = [100.0**i for i in range(-18, 3)]


def changed(losses, **at):
    return [at.get(f"at_{i}", loss) for i, loss in enumerate(losses)]


def test_landmarks_are_65_percent_of_the_fall_and_the_last_place_near_the_lowest():
    assert landmarks(RATES, FALL) == (15, 18)
    assert landmarks(RATES, changed(FALL, at_14=0.35)) == (14, 18)  # just as low as 65%


def test_a_rate_comes_from_what_the_weights_need_and_from_the_edge():
    """Of the sum of the rates, all but the last one are about a hundredth; for twice as many epochs, the rate is lower."""
    found = estimates(RATES, FALL, [], 1.0, 200)
    assert found == dict(need=pytest.approx(NEED * sum(RATES[:16])), edge=EDGE * RATES[18])
    four_times = estimates(RATES, FALL, [], 1.0, 800)
    assert four_times == dict(need=found["need"] / 2, edge=found["edge"] / 2)


@pytest.mark.parametrize("norms, weight_norm", [([], 1.0), ([1.0] * 21, 0.0), ([1.0] * 21, inf), ([1.0] * 21, nan)])
def test_the_size_of_the_updates_counts_only_if_it_is_known(norms, weight_norm):
    assert list(estimates(RATES, FALL, norms, weight_norm, 200)) == ["need", "edge"]


def jump(place):
    """Updates that are large from this place on."""
    return [float(i >= place) for i in range(len(RATES))]


def test_the_rate_is_the_middle_of_three_and_says_which_it_was():
    assert estimates(RATES, FALL, jump(16), 1.0, 800)["step"] == STEP * RATES[16] / 2
    rate = recommend_rate(RATES, FALL, jump(16), 1.0, 200)
    assert (
        rate.lr == STEP * RATES[16] == rate.estimates["step"] and "middle of three" in rate.reason and "size of the updates" in rate.reason
    )
    rate = recommend_rate(RATES, FALL, jump(3), 1.0, 200)
    assert rate.lr == rate.estimates["need"] and "how far the weights must go" in rate.reason
    rate = recommend_rate(RATES, FALL, jump(20), 1.0, 200)
    assert rate.lr == rate.estimates["edge"] and "the loss rises again" in rate.reason


def test_a_rule_is_a_function_or_the_name_of_one():
    assert as_rule(len) is len and as_rule("slide") is slide
    with pytest.raises(ValueError, match="no rule 'hill': pass 'valley', 'slide'"):
        as_rule("hill")
    with pytest.raises(
        ValueError, match=r"no rule 'vallley': did you mean 'valley'\? Pass 'valley', .*, or a function of \(lrs, losses, num_it\)$"
    ):
        as_rule("vallley")
    with pytest.raises(TypeError, match=r"no rule 7: pass .* \(lrs, losses, num_it\)$"):
        as_rule(7)


def test_rules_are_one_or_several_or_none():
    assert as_rules(None) == [] and as_rules("valley") == [valley] and as_rules(len) == [len]
    assert as_rules(("slide", len)) == [slide, len] and list(RULES) == ["valley", "slide", "minimum", "steep"]
    with pytest.raises(ValueError, match="no rule 'hill'"):
        as_rules(["slide", "hill"])


def test_only_a_sweep_that_is_open_at_its_end_says_so():
    assert "it had not" not in recommend_rate(RATES, FALL, jump(16), 1.0, 200, 21).reason


def test_of_two_estimates_the_rate_is_the_geometric_mean():
    rate = recommend_rate(RATES, FALL, [], 1.0, 200)
    assert rate.lr == pytest.approx(math.sqrt(rate.estimates["need"] * rate.estimates["edge"])) and "middle of two" in rate.reason


def test_the_rate_is_at_most_twice_the_estimate_from_the_edge():
    """A fall and a rise at once, in a hundred points for each decade: all rates together are far more than the one at the edge."""
    lrs = [10 ** (i / 100) for i in range(300)]
    losses = [1 - i / 200 if i < 200 else 1.5 for i in range(300)]
    rate = recommend_rate(lrs, losses, [], 1.0, 200)
    assert rate.estimates["need"] > 4 * rate.estimates["edge"]
    assert rate.lr == CAP * rate.estimates["edge"] == 2 * rate.estimates["edge"] and "the most that is safe" in rate.reason


def test_the_band_is_three_and_a_half_times_to_either_side():
    assert band_around(7.0) == (2.0, 24.5)


def test_where_a_loss_without_a_fall_begins_to_rise():
    """Up to 3.5 times a ten-thousandth it is as before; there is no noise."""
    rise = [1.0] * 12 + [1.0003] * 3 + [1.0004] * 6
    assert last_before_rise(RATES, rise) == 14 and landmarks(RATES, rise) == (14, 14)
    assert falls_surely(FALL) and not falls_surely(rise) and not falls_surely([1.0] * 21)
    assert fall_over_noise([1.0] * 10 + [0.5] * 5) == pytest.approx(0.5 / 1e-4) and fall_over_noise(
        [1.0, 3.0] * 5 + [1.5] * 5
    ) == pytest.approx(0.5 / (math.sqrt(1 / 10 + 1 / 5) + 2e-4))


def test_too_few_points_are_no_curve():
    assert "14 points are too few" in sweep_problem(RATES[:14], FALL[:14])
    assert "too few" in sweep_problem(RATES[:20], FALL[:20], least=21) and sweep_problem(RATES, FALL, least=21) is None


def test_a_short_sweep_has_diverged_only_if_it_rose_before_its_planned_end():
    lrs = [1 + i / 10 for i in range(5)]
    assert "diverged after 5 updates: start_lr=1 is too high" in sweep_problem(lrs, [1.0, 1.0, 1.0, 1.0, 2.1], 9)
    assert "diverged" in sweep_problem(lrs, [1.0, 3.0, 1.0, 1.0, 2.5], 9)  # it is compared with the first
    assert "too few" in sweep_problem(lrs, [1.0, 1.0, 1.0, 1.0, 2.1], 5)  # as planned
    assert "too few" in sweep_problem(lrs, [1.0, 1.0, 1.0, 1.0, 2.0], 9)  # twice the first loss, and not more
    assert "the loss is nan in update 3 (lr 1.2)" in sweep_problem(lrs, [1.0, 1.0, nan, 1.0, 1.0], 9)
    assert "diverged" in sweep_problem(decades(3), [1.0, 1.0, 9.0], 9) and "too few" in sweep_problem(decades(4), [1.0, 1.0, 1.0, 9.0], 9)


def test_a_loss_that_neither_falls_nor_rises_is_flat():
    assert "flat from 1e-36 to 1e+04" in sweep_problem(RATES, [1.0] * 21) and sweep_problem(RATES, FALL) is None


def test_a_sweep_that_ends_before_the_loss_rises_is_open():
    """Its lowest place is the last but one, or the last; and it ended as planned."""
    fall = [*FALL[:18], 0.0, 0.2]
    assert still_low(RATES[:20], fall, 20) and not still_low(RATES[:20], fall, 30) and not still_low(RATES, FALL, 21)
