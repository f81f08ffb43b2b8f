"""Figures show the numbers they were given."""

import numpy as np
import pytest

from neuralsde.plots import paths as plots

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("fitted_labels")


def fan(rng, num_features=2, truth=True):
    times = np.array([10.0, 11.0, 12.5])
    return plots.Fan(
        title="a",
        past_times=np.arange(5.0),
        past=rng.normal(size=(5, num_features)),
        times=times,
        samples=rng.normal(size=(99, 3, num_features)),
        truth=np.full((3, num_features), 0.1 if truth else np.nan),
    )


def test_fans_show_quantiles_of_the_samples(np_rng, tmp_path):
    one, other = fan(np_rng), fan(np_rng, truth=False)
    figure = plots.fan_chart([one, other], ["x", "y"], num_paths=2)
    figure.savefig(tmp_path / "fan.png")
    axes = np.array(figure.axes).reshape(2, 2)
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["x", "y"]
    for k in range(2):
        for band, level in zip(axes[k, 0].collections, (0.95, 0.8, 0.5)):
            corners = band.get_paths()[0].vertices
            want = np.quantile(one.samples[..., k], [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
            at_end = corners[corners[:, 0] == 12.5, 1]
            assert at_end.min() == pytest.approx(want[0, -1]) and at_end.max() == pytest.approx(want[1, -1])
            at_origin = corners[corners[:, 0] == 4.0, 1]
            np.testing.assert_allclose(at_origin, one.past[-1, k])  # fans start at the last state
    lines = {line.get_label(): line for line in axes[1, 0].lines}
    np.testing.assert_allclose(lines["median"].get_ydata()[1:], np.median(one.samples[..., 1], axis=0))
    np.testing.assert_allclose(lines["truth"].get_ydata(), [one.past[-1, 1], 0.1, 0.1, 0.1])
    assert "truth" not in {line.get_label() for line in axes[0, 1].lines}  # nothing is known there


def test_many_forecasts_of_one_feature_are_small_multiples(np_rng):
    fans = [fan(np_rng, num_features=1, truth=False) for _ in range(5)]
    figure = plots.fan_chart(fans, ["x"], title="5 of 22 series")
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(figure.axes) == 6 and len(shown) == 5 and figure.get_suptitle() == "5 of 22 series"
    assert [ax.get_ylabel() for ax in shown] == ["x", "", "", "x", ""]
    limits = {ax.get_ylim() for ax in shown}
    assert len(limits) == 5  # each on its own scale
    for ax, own in zip(shown, fans):
        line = next(line for line in ax.lines if line.get_label() == "past")
        np.testing.assert_allclose(line.get_ydata(), own.past[:, 0])
    assert len(plots.fan_chart(fans, ["x"]).axes) == 6 and len(plots.fan_chart(fans[:3], ["x"]).axes) == 3


def scores(ci95):
    level = {"mean": 0.4, "ci95": ci95}
    lead = [{"lead": 1.0, "mean": 0.2, "ci95": ci95}, {"lead": 2.0, "mean": 0.3, "ci95": ci95}]
    band = {"low": None, "high": None} if ci95 is None else {"low": 0.2, "high": 0.3}
    return {
        "reliability": [{"level": 0.5} | level, {"level": 0.9} | level],
        "pit": {"fraction": [0.1, 0.2, 0.3, 0.4]} | band,
        "crps_by_lead": lead,
        "references": {"random_walk": {"crps_by_lead": lead}},
    }


@pytest.mark.parametrize("ci95", [0.05, None])
def test_calibration_figure(ci95, tmp_path):
    figure = plots.calibration(scores(ci95))
    figure.savefig(tmp_path / "calibration.png")
    coverage, pit, leads = figure.axes
    np.testing.assert_allclose(coverage.lines[1].get_xydata(), [[0.5, 0.4], [0.9, 0.4]])
    np.testing.assert_allclose([bar.get_height() for bar in pit.patches[:4]], [0.4, 0.8, 1.2, 1.6])
    assert len(pit.patches) == (4 if ci95 is None else 5)
    assert [line.get_label() for line in leads.lines] == ["model", "random walk"]
    told = {"leads": {"at": [1.5, 3.5], "label": "steps ahead, each a month"}}
    leads = plots.calibration(scores(ci95) | told).axes[2]
    np.testing.assert_allclose(leads.lines[0].get_xdata(), [1.5, 3.5])
    assert leads.get_xlabel() == "steps ahead, each a month"
