"""Tables in tests, as a user has them."""

import numpy as np

NAMES = ["--id", "who", "--time", "when", "--columns", "a", "b", "--context", "u"]


TINY = ["--net.width", "8", "--net.depth", "1", "--steps", "4", "--train.batch-size", "32", "--log-every", "2"]


def write_table(file, num_paths=5, length=40, seed=0):
    """Walks with gaps, a text cell, a repeated row, a row without time and rows out of order."""
    rng = np.random.default_rng(seed)
    rows = []
    for p in range(num_paths):
        x = rng.standard_normal((length, 2)).cumsum(0)
        for k in range(length):
            minute = f"2026-03-29T{k // 60:02d}:{k % 60:02d}:00+01:00"
            a = "" if rng.random() < 0.1 else f"{x[k, 0]:.4f}"
            rows.append([f"pump {p}", minute, a, f"{x[k, 1]:.4f}", str(p % 2), "fine", str(k)])
    rows[3][3] = "error"
    rows[5], rows[6] = rows[6], rows[5]
    rows += [rows[10], ["pump 0", "", "1", "1", "0", "fine", "0"]]
    file.write_text("who,when,a,b,u,state,n\n" + "\n".join(",".join(r) for r in rows) + "\n")
    return file
