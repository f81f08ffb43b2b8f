"""What the documentation shows runs as it stands (with fewer training steps)."""

import os
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("quickstart", "extending", "pusht"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    code = re.sub(r"steps=[\d_]+", "steps=10", "\n".join(blocks))
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        exec(compile(code, str(page), "exec"), {"__name__": "documentation"})
    finally:
        os.chdir(before)


def test_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "own_paths.py"))["main"](steps=10)
    assert "log p per observation" in capsys.readouterr().out
