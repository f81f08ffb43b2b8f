"""Prose is reviewed like code: short sentences, narrow tables, and no number that is not in results/."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
RESULTS = [README, *sorted((ROOT / "docs" / "results").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
MOST_WORDS, MOST_COLUMNS, WIDEST = 40, 7, 80


def code_of(text):
    """The lines inside fences."""
    return [line for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()]


def tables_of(text):
    """Every table: its head and its rows, as lists of cells."""
    bare = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    blocks = re.findall(r"(?:^\|.*\|[ ]*(?:\n|$))+", bare, flags=re.M)
    cells = [[re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in block.splitlines()] for block in blocks]
    return [[head, *rows] for head, _, *rows in cells]


def prose_of(text):
    """Paragraphs, list items and captions, each on one line: no code, table, heading, html or generated block."""
    text = re.sub(r"<!-- value: [\w-]+ -->(.*?)<!-- end -->", r"\1", text)
    for pattern in (
        r"^```.*?^```",
        r"<!-- table:.*?<!-- end -->",
        r"<!--.*?-->",
        r"^:::.*$",
        r"^\|.*$",
        r"^ {4}\S.*$",
        r"^#.*$",
    ):
        text = re.sub(
            pattern,
            "\n\n" if "<" in pattern or "`" in pattern else "",
            text,
            flags=re.S | re.M if ".*?" in pattern else re.M,
        )
    text = re.sub(r"`[^`\n]+`", "Code", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)(\{[^}]*\})?", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)(\{[^}]*\})?", r"\1", text)
    text = re.sub(r"<[^>]+>|:[a-z0-9-]+:(\{[^}]*\})?", " ", text)
    text = re.sub(r"^\s*([-*]|\d+\.) +", "\n\n", text, flags=re.M)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def sentences_of(text):
    """The sentences of a page, without emphasis."""
    parts = [re.split(r"(?<=[.!?])\s+(?=[A-ZΑ-Ω0-9\"'(])", p.replace("*", "")) for p in prose_of(text)]
    return [s for part in parts for s in part if s]


def num_words(sentence):
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def test_the_reader_of_pages_sees_what_a_reader_sees():
    text = "# Title of it\n\nOne two\nthree. Of [four](x.md) `a b`!\n\n- five\n- six\n\n```\nno. code\n```\n\n"
    text += "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert sentences_of(text) == ["One two three.", "Of four Code!", "five", "six"]
    assert tables_of(text) == [[[" a ", " b "], [" 1 ", " 2 "]]]
    assert code_of(text) == ["no. code"]


def test_readme_is_read_in_a_minute():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert all(len(table) - 1 <= 6 for table in tables_of(text))


def test_numbers_in_the_readme_are_filled_in():
    """By docs/tables.py, from results/: no bare number in what a reader reads, but for code, tables and names such as Push-T."""
    text = re.sub(r"<!-- value: [\w-]+ -->.*?<!-- end -->", "", README.read_text(encoding="utf-8"))
    assert not re.findall(r".*(?<![\w.-])\d.*", "\n".join(prose_of(text)))
    assert re.findall(r"(?<![\w.-])\d", "\n".join(prose_of(README.read_text(encoding="utf-8"))))


@each_page
def test_sentences_are_short(page):
    long = [s for s in sentences_of(page.read_text(encoding="utf-8")) if num_words(s) > MOST_WORDS]
    assert not long, "\n".join(f"{num_words(s)} words: {s}" for s in long)


@each_page
def test_no_sentence_begins_with_of(page):
    assert not [s for s in sentences_of(page.read_text(encoding="utf-8")) if s.startswith("Of ")]


@each_page
def test_tables_are_narrow(page):
    wide = [table[0] for table in tables_of(page.read_text(encoding="utf-8")) if len(table[0]) > MOST_COLUMNS]
    assert not wide, wide


@each_page
def test_code_fits_a_page(page):
    wide = [line for line in code_of(page.read_text(encoding="utf-8")) if len(line) > WIDEST]
    assert not wide, "\n".join(wide)


def test_glossary_is_short_and_in_order():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [row[0].strip(" *") for table in tables_of(text) for row in table[1:]]
    assert 20 <= len(terms) <= 30
    assert terms == sorted(terms, key=str.lower) and len({t.lower() for t in terms}) == len(terms)


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    assert not [p for p in pages if f": {p}\n" not in nav]


@pytest.mark.parametrize("page", RESULTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_numbers_in_prose_stand_in_a_table_made_from_results(page):
    made = "\n".join(
        block
        for file in PAGES
        for block in re.findall(
            r"<!-- table: [\w-]+ -->(.*?)<!-- end -->", file.read_text(encoding="utf-8"), flags=re.S
        )
    )
    known = set(re.findall(r"\d+(?:,\d{3})*\.\d+", made))
    found = re.findall(
        r"(?<![\w.])\d+(?:,\d{3})*\.\d+(?![\w.]*\d)", " ".join(prose_of(page.read_text(encoding="utf-8")))
    )
    assert not [number for number in found if number not in known]
