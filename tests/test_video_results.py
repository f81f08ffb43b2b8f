"""Tables and figures of video results, from a small file made here; and the files that are published, if any."""

import json
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import neuralsde as nsde
from neuralsde.baselines.config import Generation
from neuralsde.core.formats import current
from neuralsde.core.records import from_dict
from neuralsde.experiments import result_tables
from neuralsde.experiments.compare import summarise
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.recipes import video as recipes
from neuralsde.experiments.recipes.registry import COMPARISONS
from neuralsde.experiments.result_tables import TABLES
from neuralsde.experiments.tasks.video import at_temperature, least_distance, sampler_of
from neuralsde.experiments.video_config import VideoVariant
from neuralsde.metrics.power_law import fit_power_law
from neuralsde.plots import paths as plots

ROOT = Path(__file__).parent.parent
VIDEO = (
    "video-collisions",
    "video-fronts",
    "video-fronts-128",
    "video-fronts-people",
    "video-parts",
    "video-scaling",
    "video-people",
)


def scores(shift, prefix=""):
    values = {"psnr": 25.0 + shift, "ssim": 0.8 + shift / 10, "motion_distance": 7.0 - shift, "passes_per_frame": 1.0}
    values |= {"psnr_half_width": 0.5, "psnr_by_clip": " ".join(f"{20 + k + shift:g}" for k in range(4))}
    values["ssim_by_clip"] = " ".join(f"{0.5 + k / 10 + shift / 10:g}" for k in range(4))
    return {prefix + key: value for key, value in values.items()}


def results(rows):
    runs = [{"label": label, "seed": 0, "scores": found} for label, found in rows.items()]
    return {"summary": {r["label"]: summarise([r]) for r in runs}, "runs": runs}


def test_comparisons_have_their_command_and_their_table():
    import typing

    from neuralsde.cli.experiments import Compare

    known = get_args(get_args(typing.get_type_hints(Compare, include_extras=True)["task"])[0])
    assert set(known) == set(COMPARISONS) == set(TABLES)
    assert set(VIDEO) <= set(known)


def test_rows_have_names_of_their_own_and_differ_in_what_they_say():
    rows = recipes.comparison()
    assert rows["NSDE"].model.tau == "start" and rows["NSDE, uniform τ"].model.tau == "uniform"
    assert rows["Flow Matching"].model.target == "increment"
    assert len({(str(r.model)) for r in rows.values()}) == len(rows)
    for run in rows.values():
        names = [variant.name for variant in run.task.variants]
        assert len(set(names)) == len(names)
    assert len(recipes.scaling()) >= 8
    assert len({r.train.steps for r in recipes.scaling().values()}) == 1
    rates = [r.train.lr for r in recipes.scaling().values()]
    assert rates == sorted(rates, reverse=True)
    assert {r.train.steps for r in rows.values()} == {recipes.TRAIN.steps}  # equal training for all


def test_methods_stand_in_order_of_passes_beside_a_copy():
    ours = scores(0) | scores(1, "passes 5: ") | scores(-2, "copy: ") | {"passes 5: passes_per_frame": 5.0}
    table = result_tables.methods(results({"NSDE": ours})).splitlines()
    lines = [line for line in table if line.startswith("| NSDE |")]
    assert lines[0].startswith("| NSDE | 1 | 25.00 ± 0.50 |") and lines[1].startswith("| NSDE | 5 | 26.00 ± 0.50 |")
    assert any("copy of the last frame | 0 | 23.00" in line for line in table)
    assert any(line.startswith("| PFI | – | not measured") for line in table)


def test_what_no_training_touches_keeps_its_interval_over_clips():
    half = result_tables.half_width
    assert half({"ci95": 0.3}, 3, 0.5) == 0.3 and half({"ci95": 0.3}, 2, 0.5) == 0.5
    assert half({"ci95": 1e-6}, 3, 0.5) == 0.5 and half({"ci95": None}, 1, 0.5) == 0.5
    assert half({"ci95": 0.3}, 3, None) == 0.3


def test_differences_are_those_of_the_same_clips():
    """Clips differ by dB, the models by 0.25 on each of them: the interval of the difference is 0."""
    values = results({"NSDE": scores(0.25), "Flow Matching": scores(0)})
    table = result_tables.paired(values, [("NSDE", "Flow Matching"), ("NSDE", "PFI")])
    assert "| NSDE − Flow Matching | +0.25 ± 0.00 | +0.0250 ± 0.0000 |" in table
    assert "| NSDE − PFI | not measured | not measured |" in table
    runs = values["runs"]
    runs[0]["scores"] |= {"psnr_by_clip": "1 1 3 3", "recording_by_clip": "0 0 1 1"}
    runs[1]["scores"]["psnr_by_clip"] = "0 0 0 0"
    mean, half = result_tables._difference(runs, "NSDE", "Flow Matching", "psnr")
    assert mean == 2 and half == pytest.approx(12.706, rel=1e-3)  # two recordings: t with one degree of freedom
    for run, shift in zip(runs, (1, 0)):  # another setting has clips of its own, from recordings of its own
        run["scores"] |= scores(shift, "36 frames: ") | {"36 frames: recording_by_clip": "0 1 1 1"}
    runs[0]["scores"]["36 frames: psnr_by_clip"] = "21 22 23 24"
    runs[1]["scores"]["36 frames: psnr_by_clip"] = "20 20 20 20"
    names = ("NSDE: 36 frames", "Flow Matching: 36 frames", "psnr")
    mean, half = result_tables._difference(runs, *names)
    assert mean == 2.5 and half == pytest.approx(12.706 * math.sqrt(2 * 2 * 1.5**2) / 4, rel=1e-3)
    runs[1]["scores"]["36 frames: psnr_by_clip"] = "20 20 20"  # not the same clips: no difference
    assert result_tables._difference(runs, *names) is None


def test_a_power_law_is_found():
    sizes = [2.0**k for k in range(10, 18)]
    law = fit_power_law(sizes, [3 * n**-0.25 for n in sizes])
    assert law.exponent == pytest.approx(-0.25) and law.factor == pytest.approx(3) and law.pearson == pytest.approx(-1)
    assert law(16.0) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="three or more different"):
        fit_power_law([1, 1, 1], [1, 2, 3])


def test_the_scaling_table_fits_what_is_there():
    losses = {
        f"width {w}": {"reduced_loss": 4 * n**-0.1, "parameters": n, "train_seconds": 1.0}
        for w, n in ((64, 10), (96, 100), (128, 1000))
    }
    table = result_tables.scaling(results(losses))
    assert "L' ∝ N^-0.1000, Pearson -1.0000 over 3 sizes." in table and "| width 512 | – | not measured | – |" in table


def test_figures_draw(tmp_path):
    points = [plots.Point(40.0, 23.0, 1), plots.Point(30.0, 23.1, 2)]
    figure = plots.score_fronts({"NSDE": points, "PFI": points[:1]}, x_label="distance", y_label="PSNR, dB")
    figure.savefig(tmp_path / "fronts.png")
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "2", "1"]
    plots.scaling_law([1e5, 1e6, 1e7], [3.0, 2.5, 2.1]).savefig(tmp_path / "law.png")


@pytest.mark.parametrize(("num", "shown"), [(1, "± 0.50"), (2, "± 0.50"), (3, "± 2.48")])
def test_intervals_are_over_seeds_from_three_on(num, shown):
    row = summarise([{"seed": k, "scores": scores(float(k))} for k in range(num)])
    assert shown in result_tables._value(row, "psnr", 2)  # 3 seeds 25, 26, 27: t(2) · 1 / √3


def test_a_setting_that_one_seed_of_three_has_shows_the_interval_over_its_clips():
    runs = [{"seed": k, "scores": scores(float(k))} for k in range(3)]
    runs[0]["scores"] |= scores(0.0, "passes 5: ")
    assert result_tables._value(summarise(runs), "passes 5: psnr", 2) == "25.00 ± 0.50"


def test_a_setting_that_two_seeds_of_three_have_shows_the_interval_over_its_clips():
    runs = [{"seed": k, "scores": scores(float(k))} for k in range(3)]
    for k in (0, 1):
        runs[k]["scores"] |= scores(float(k), "passes 5: ")
    assert result_tables._value(summarise(runs), "passes 5: psnr", 2) == "25.50 ± 0.50"


def test_texts_are_left_out_of_means():
    assert "psnr_by_clip" not in summarise([{"seed": 0, "scores": scores(0)}])


@pytest.mark.parametrize("name", VIDEO)
def test_published_files_say_where_they_came_from(name):
    file = ROOT / "results" / f"{name.replace('-', '_')}.json"
    if not file.exists():
        pytest.skip(f"{file.name} has not been measured yet")
    values, rows = json.loads(file.read_text(encoding="utf-8")), COMPARISONS[name]()
    assert set(values["summary"]) <= {*rows, "autoencoder"}
    for run in values["runs"]:
        assert run["commit"] not in ("", "unknown") and run["hardware"]["cores"]
        experiment = from_dict(Experiment, current(run["experiment"]))
        assert run["label"] == "autoencoder" or experiment.model == rows[run["label"]].model
        assert all(math.isfinite(v) for v in run["scores"].values() if isinstance(v, float))
    assert TABLES[name](values)


# Temperatures


def test_the_temperature_of_least_distance_is_taken_among_those_with_enough_psnr():
    tried = {0.0: (9.0, 25.0), 0.6: (4.0, 23.0), 0.8: (3.0, 21.9), 1.0: (5.0, 22.0)}
    assert least_distance(tried) == 0.6  # 0.8 is nearer, with less PSNR than all of the noise


def test_a_temperature_is_a_factor_on_the_noise_of_every_model():
    assert at_temperature(Generation(num_steps=3), 0.4) == Generation(num_steps=3, temperature=0.4)
    assert at_temperature(nsde.Sampler(passes=3), 0.4) == nsde.Sampler(passes=3, diffusion=0.4)
    with pytest.raises(ValueError, match=r"`temperature` must not be negative"):
        Generation(temperature=-0.1)
    with pytest.raises(ValueError, match="`temperatures` must hold 1"):
        VideoVariant(name="a", temperatures=(0.5,))


def test_passes_of_transport_are_those_after_the_gaussian():
    data = nsde.Trajectories.from_arrays(np.random.default_rng(0).standard_normal((4, 9, 2)).cumsum(1))
    small = nsde.MLPConfig(width=8, depth=1)
    for law, found in ((nsde.Transport(), {"passes": 3}), (nsde.Euler(), {"substeps": 4})):
        model = nsde.NeuralSDE.for_data(data, law=law, net=small)
        sampler = sampler_of(model, VideoVariant(name="a", passes=4))
        assert all(getattr(sampler, name) == value for name, value in found.items())
