"""What was found, tried and chosen, and why: kept with the model as a record, shown as Markdown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from neuralsde.data.diagnosis import Trait


@dataclass(frozen=True)
class Tried:
    """One candidate in one round."""

    round: str
    name: str
    why: str
    steps: int
    folds: int
    sampler: str  # the best of those tried
    score: float
    gain: float  # over the default in the same round
    error: float  # standard error of the gain


@dataclass(frozen=True)
class Report:
    """The choice of `nsde.fit`."""

    traits: tuple[Trait, ...]
    tried: tuple[Tried, ...]
    choice: str
    reason: str
    sampler: str
    settings: dict[str, Any]
    steps: int
    unit: int  # steps of a short trial: what the budget came to on this machine
    budget: str
    seed: int
    score: dict[str, float] | None  # of the choice, on paths that took no part in it
    default_score: dict[str, float] | None
    words: str  # what that score is of
    notes: tuple[str, ...] = ()  # what the last training warned of
    equations: tuple[str, ...] = ()  # the drift, where it has a formula

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def of(cls, model: Any) -> Report:
        """Of a model that `neuralsde.fit` chose."""
        if not model.report:
            raise ValueError("The model was not chosen by `neuralsde.fit(data)`: it has no report.")
        return cls.from_dict(model.report)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Report:
        """From plain values."""
        traits = tuple(Trait(**t) for t in record["traits"])
        tried = tuple(Tried(**t) for t in record["tried"])
        lines = {name: tuple(record.get(name, ())) for name in ("notes", "equations")}
        return cls(**{**record, "traits": traits, "tried": tried, **lines})

    def __str__(self) -> str:
        lines = ["# What was chosen, and why", "", f"**{self.choice}**, drawn {self.sampler}. {self.reason}", ""]
        if self.score is not None:
            other = f" (the default: {self.default_score['score']:.3f})" if self.default_score else ""
            lines += [
                f"Score {self.score['score']:.3f}{other}, {self.words}. Less is better; standing still has about 1.",
                "",
            ]
        if self.equations:
            lines += ["## The drift", "", *(f"- {line}" for line in self.equations), ""]
        if self.notes:
            lines += ["## To note", "", *(f"- {note}" for note in self.notes), ""]
        lines += ["## The data", ""] + [f"- **{t.name}**: {t.text}" for t in self.traits]
        lines += [
            "",
            "## Candidates",
            "",
            "| round | candidate | drawn | score | gain | ± | why |",
            "|---|---|---|---|---|---|---|",
        ]
        for t in self.tried:
            lines.append(
                f"| {t.round} | {t.name} | {t.sampler} | {t.score:.3f} | {t.gain:+.3f} | {t.error:.3f} | {t.why} |"
            )
        lines += [
            "",
            f"Short trials of {self.unit} steps (budget {self.budget}, seed {self.seed}); the choice was trained for "
            f"{self.steps} on all data.",
            "The default is left for a gain of more than two standard errors.",
        ]
        return "\n".join(lines)
