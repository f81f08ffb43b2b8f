"""Many series, and many rows: seconds and memory of `nsde.fit_series` and its forecasts.

    python benchmarks/forecasting/scale.py --output results/forecasting_scale.json

10,000 monthly series of 40 months, and 1,000 hourly series of 10,000 hours read from a parquet file. Each in a process of its
own, whose peak memory is given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import neuralsde as nsde
from neuralsde.training.run_folder import provenance, write_results

CASES: dict[str, dict[str, Any]] = {
    "10,000 series of 40 months": {"num": 10_000, "length": 40, "freq": "MS", "period": 12, "ahead": 12},
    "1,000 series of 10,000 hours": {"num": 1_000, "length": 10_000, "freq": "h", "period": 24, "ahead": 24},
}
BUDGET = "1 min"


def table(num: int, length: int, freq: str, period: int, **_: Any) -> pd.DataFrame:
    """Levels from tens to thousands, a season with a phase of its own, and a walk."""
    rng = np.random.default_rng(0)
    phase = np.arange(length, dtype=np.float32)[None] / period + rng.random((num, 1), dtype=np.float32)
    walk = rng.standard_normal((num, length), dtype=np.float32).cumsum(1) * np.float32(0.1 / length**0.5)
    y = np.exp(rng.normal(5, 1.5, (num, 1))).astype(np.float32) * (1 + 0.1 * np.sin(2 * np.pi * phase) + walk)
    dates = pd.date_range("2020-01-01", periods=length, freq=freq)
    return pd.DataFrame({"unique_id": np.repeat(np.arange(num), length), "ds": np.tile(dates, num), "y": y.ravel()})


def measure(name: str, file: str) -> dict[str, Any]:
    """Seconds of a fit and of its forecasts, and the peak memory of this process."""
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    model = nsde.fit_series(file, budget=BUDGET, progress=False)
    fitted = time.perf_counter()
    frame = model.forecast(CASES[name]["ahead"]).to_frame()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {
        "case": name,
        "budget": BUDGET,
        "fit_seconds": fitted - began,
        "forecast_seconds": time.perf_counter() - fitted,
        "forecasts": len(frame),
        "peak_gib": int(peak.split()[1]) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--measure", nargs=2, help="one case and its file, in this process")
    args = parser.parse_args()
    if args.measure:
        print("RESULT " + json.dumps(measure(*args.measure)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            file = str(Path(folder) / "table.parquet")
            table(**case).to_parquet(file)
            call = [sys.executable, __file__, "--measure", name, file]
            done = subprocess.run(call, check=True, capture_output=True, text=True)
            rows.append(json.loads(done.stdout.rsplit("RESULT ", 1)[1]))
            print(rows[-1], flush=True)
    record = {"command": f"python benchmarks/forecasting/scale.py --output results/{args.output.name}", "rows": rows}
    write_results(args.output, {**record, **provenance()})


if __name__ == "__main__":
    main()
