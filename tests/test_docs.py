"""What the documentation shows runs as it stands (with fewer training steps)."""

import os
import pydoc
import re
import runpy
from functools import partial
from pathlib import Path

import pytest

from neuralsde.nets.config import MLPConfig

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"docs/guides/videos.md", "docs/start/ten_lines.md"}
"""Run by tests/test_cli_video.py, with the commands between its blocks; and as a part of the README, which has the same ones."""


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if blocks_of(page) and str(page.relative_to(ROOT)) not in ELSEWHERE
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(page, tmp_path, monkeypatch, short_search):
    blocks = blocks_of(page)
    monkeypatch.setattr(
        MLPConfig.__init__, "__kwdefaults__", {**MLPConfig.__init__.__kwdefaults__, "width": 8, "depth": 1}
    )
    code = re.sub(r"steps=[\d_]+", "steps=2", "\n".join(blocks))
    code = re.sub(r"num_paths=\d[\d_]{3,}", "num_paths=200", code).replace("record(80)", "record(20)")
    if "nsde.fit(data" in code:  # a search takes minutes: less data, a small net and law, and hardly any time
        code = (
            re.sub(r', budget="[^"]*"', "", code)
            .replace("list(x)", "list(x[:8, :40])")
            .replace("arange(40)", "arange(12)")
        )
        code = code.replace("nsde.fit(data", "nsde.fit(data, budget=1, law=nsde.Euler(), net=nsde.MLPConfig()")
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        exec(compile(code, str(page), "exec"), {"__name__": "documentation"})
    finally:
        os.chdir(before)


def test_pages_with_code_are_found():
    assert len(PAGES) >= 8


def test_ten_lines_are_those_of_the_readme():
    assert blocks_of(ROOT / "README.md") == blocks_of(ROOT / "docs" / "start" / "ten_lines.md")


def test_example_runs(capsys, monkeypatch):
    example = runpy.run_path(str(ROOT / "examples" / "own_paths.py"))
    monkeypatch.setitem(example["main"].__globals__, "simulate", partial(example["simulate"], length=60))
    example["main"](steps=10)
    assert "log p per observation" in capsys.readouterr().out


def test_the_api_page_names_what_is_there():
    """Else the site is not built; mkdocs is not at hand in the tests."""
    names = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(names) >= 20
    for name in names:
        assert pydoc.locate(name) is not None, name
