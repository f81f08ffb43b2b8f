"""The file of the forecasting benchmark: who was measured, and how the rivals were tuned."""

import json
from pathlib import Path

import pytest

ROWS = json.loads((Path(__file__).parents[1] / "results/forecasting.json").read_text())["rows"]
SETS = list(dict.fromkeys(row["set"] for row in ROWS))
NEURAL = [name for name in SETS if not name.startswith("M3")]  # where neural rivals were measured
MOST = 11  # trials of `nsde.fit_series` on these tables


@pytest.mark.parametrize(("method", "seeds"), [("nsde.fit_series", 3), ("DeepAR", 3), ("NHITS", 1)])
def test_every_table_has_its_seeds_from_a_clean_tree(method, seeds):
    own = [row for row in ROWS if row["method"] == method]
    names = SETS if method == "nsde.fit_series" else NEURAL
    assert sorted((row["set"], row["seed"]) for row in own) == sorted((s, k) for s in names for k in range(seeds))
    assert not any(row["commit"].endswith("dirty") for row in own)


@pytest.mark.parametrize("method", ["DeepAR", "NHITS"])
def test_a_rival_is_chosen_by_its_trials_which_are_as_many_as_ours(method):
    for row in ROWS:
        if row["method"] == method:
            assert row["tried"][row["choice"]] == min(row["tried"].values())
            short = row["set"] in ("US employment, monthly", "prices, monthly")  # ours tries 8 and 6 there
            assert len(row["tried"]) >= (8 if short else MOST)


def test_all_methods_forecast_the_same_windows():
    for name in SETS:
        assert len({(row["num_windows"], row["horizon"]) for row in ROWS if row["set"] == name}) == 1
