"""From data to a choice: short trials of candidates, changes of the best, a final between the best and the default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neuralsde.selection.candidates import Candidate, Move, Plan, by_a_net, combined
from neuralsde.selection.report import Tried
from neuralsde.selection.scores import Score, gain
from neuralsde.selection.trials import Samplers, Trials

LONGER = 6  # steps of the final, in those of a short trial: what is best after few steps is often not so after many
ALONE = 1.5  # what a step takes longer in a training of one model than in a stack
FINALISTS = 2
SHARES_OF_MOVES = (4, 2)  # changes of the best and of the second best that are tried
PULLS, HARD, SHARES, SUBSTEPS = (0.25, 0.75), (0.5, 1.5), (0.5,), 4
STANDARD_ERRORS = 2.0  # by which the default must be beaten
SAMPLER_ERRORS = 1.0  # by which the sampler of the training must be beaten


@dataclass(frozen=True)
class Choice:
    """What a search came to."""

    candidate: Candidate
    sampler: dict[str, float]
    sampler_name: str
    reason: str
    tried: tuple[Tried, ...]
    most: int | None  # steps of its last training, where more made it worse
    exact: bool  # whether the last training may be by moments: not where a trial of them was worse
    score: float  # in the final


def quick_samplers(candidate: Candidate) -> Samplers:
    """For short trials: pulled to the data where that can be, in finer steps where states between observations were learned."""
    finer = _finer(candidate)
    how: dict[str, float] = {"pull": 0.5, **finer} if _pulls(candidate) else finer
    return {in_words(how): how}


def _finer(candidate: Candidate) -> dict[str, float]:
    """Substeps, where states between observations were learned."""
    return {"substeps": SUBSTEPS} if candidate.config.start_probability < 1 else {}


def _pulls(candidate: Candidate) -> bool:
    """Whether there is a denoiser that knows the way to the data."""
    return candidate.config.denoiser is not None and candidate.config.noisy


def usual_sampler(candidate: Candidate) -> dict[str, float]:
    """What a calibration starts from: where states between observations were learned, finer steps that are pulled to the data."""
    return list(quick_samplers(candidate).values())[-1] if _finer(candidate) else {}


def further_samplers(candidate: Candidate) -> list[Samplers]:
    """For the final: other pulls than the usual one, then changes of the best of these (a share of the noise)."""
    finer = _finer(candidate)
    sizes = () if not _pulls(candidate) else HARD if finer else PULLS
    pulls: list[dict[str, float]] = [{"pull": size, **finer} for size in sizes]
    others = [how for how in ({}, *pulls) if how != usual_sampler(candidate)]
    shares: list[dict[str, float]] = [{"diffusion": share} for share in SHARES] if pulls else []
    return [{in_words(how): how for how in part} for part in (others, shares)]


def in_words(how: dict[str, float]) -> str:
    """A sampler in words."""
    words = {"pull": "pulled ({:g})", "diffusion": "with {:g} of the noise", "substeps": "in {:g} substeps"}
    return ", ".join(text.format(how[name]) for name, text in words.items() if name in how) or "as trained"


def num_units(plan: Plan, num_folds: int) -> float:
    """Steps of the whole search, in those of a short trial of the default."""
    tried, changes = [plan.default, *plan.first], _most_changes(plan)
    mean = sum(c.cost for c in tried) / len(tried)
    short = sum(c.cost for c in (*tried, *changes)) + mean * _pairs(changes)
    finalists = _num_finalists(plan, changes)
    trained = finalists + 1 + (plan.sparse is not None)
    long = LONGER * mean * (num_folds * trained + ALONE * (min(finalists, 1) + 1))
    return (short * early_folds(num_folds) + long) / plan.default.cost


def drawing_time(plan: Plan, num_folds: int, took: Mapping[str, float]) -> float:
    """Seconds of all draws of the search, given those of one draw of each candidate."""
    tried, changes = [plan.default, *plan.first], _most_changes(plan)
    mean = sum(took[c.name] for c in tried) / len(tried)
    early = (len(tried) + len(changes) + _pairs(changes)) * mean * early_folds(num_folds)
    finalists = _num_finalists(plan, changes)
    further = [took[c.name] * sum(map(len, further_samplers(c))) for c in tried]
    late = (finalists + 1) * mean + (min(finalists, 1) + 1) * sum(further) / len(tried)
    return early + late * num_folds + 3 * mean


def _most_changes(plan: Plan) -> list[Candidate]:
    """The dearest changes that a search may come to try, whichever candidate is the best."""
    tried = [plan.default, *plan.first]
    every = ([best, *(c for c in tried if c is not best)] for best in tried)
    made = ([c for _, _, c in _changes_of(ranked, plan.moves)] for ranked in every)
    return max(made, key=lambda changes: sum(c.cost for c in changes))


def _pairs(changes: list[Candidate]) -> int:
    """Whether two changes may be tried together."""
    return int(len(changes) > 1)


def _num_finalists(plan: Plan, changes: list[Candidate]) -> int:
    return min(FINALISTS, len(plan.first) + len(changes))


def _changes_of(ranked: list[Candidate], moves: list[Move]) -> list[tuple[Candidate, Move, Candidate]]:
    """Changes of the best and of the second best that are none of the candidates: of which, what was changed, what became of it."""
    known, made = list(ranked), []
    for candidate, most in zip(ranked, SHARES_OF_MOVES):
        some = [(candidate, move, combined(candidate, move)) for move in moves]
        fresh = [(a, b, c) for a, b, c in some if c is not None and not any(map(c.same_as, known))][:most]
        made += fresh
        known += [c for _, _, c in fresh]
    return made


def early_folds(num_folds: int) -> int:
    """Folds of a short trial."""
    return max(1, num_folds - 1)


class Search:
    """Rounds of trials."""

    def __init__(self, plan: Plan, trials: Trials, unit: int, say: Callable[[str], None]) -> None:
        self.plan, self.trials, self.unit, self.say = plan, trials, unit, say
        self.tried: list[Tried] = []
        self.short: dict[str, Score] = {}  # of the short trials, by the name of the candidate
        self.num_folds = len(trials.folds)

    def run(self) -> Choice:
        """All rounds."""
        short = range(early_folds(self.num_folds))
        self._choose_terms(short)
        default = self.plan.default
        self.trials.train([default, *self.plan.first], self.unit, short)
        base = self._short("first", default)
        ranked = [(base.mean, default)]
        ranked += [(self._short("first", candidate, base).mean, candidate) for candidate in self.plan.first]
        ranked.sort(key=lambda item: item[0])
        ranked += self._changes(ranked, base)
        ranked.sort(key=lambda item: item[0])
        self.trials.forget()
        return self._final([c for _, c in ranked if c is not default][:FINALISTS])

    def _short(self, name: str, candidate: Candidate, base: Score | None = None) -> Score:
        """The score of a short trial by its best sampler; its gain is noted over `base`, or over itself."""
        folds = range(early_folds(self.num_folds))
        scores = self.trials.score(candidate, self.unit, folds, quick_samplers(candidate))
        best = min(scores, key=lambda key: scores[key].mean)
        self.short[candidate.name] = scores[best]
        self._note(name, candidate, self.unit, len(folds), best, scores[best], base or scores[best])
        return scores[best]

    def _changes(self, ranked: list[tuple[float, Candidate]], base: Score) -> list[tuple[float, Candidate]]:
        """Changes of the best few, and of the very best those two together that help most."""
        folds = range(early_folds(self.num_folds))
        made = _changes_of([c for _, c in ranked], self.plan.moves)
        self.trials.forget()
        self.trials.train([c for _, _, c in made], self.unit, folds)
        found = [(self._short("changed", c, base).mean, c) for _, _, c in made]
        score, best = ranked[0]
        helped = sorted(
            ((s, m) for (s, _), (a, m, _) in zip(found, made) if a is best and s < score), key=lambda i: i[0]
        )
        other = next((m for _, m in helped if not set(m.settings) & set(helped[0][1].settings)), None)
        if other is not None:
            one = combined(best, helped[0][1])
            both = one and combined(one, other)
            if both is not None:
                found.append((self._short("changed", both, base).mean, both))
        return found

    def _final(self, finalists: list[Candidate]) -> Choice:
        """Longer trainings on all folds; the default is left for a clear gain only."""
        steps, folds, default = LONGER * self.unit, range(self.num_folds), self.plan.default
        self.trials.train([default, *finalists], steps, folds)
        scores = {c.name: self._usual(c, steps) for c in [default, *finalists]}
        finalists = sorted(finalists, key=lambda c: scores[c.name].mean)
        found = [(c, *self._calibrated(c, steps, scores[c.name])) for c in [default, *finalists[:1]]]
        found += [(c, usual_sampler(c), scores[c.name]) for c in finalists[1:]]
        _, how, base = found[0]
        for candidate, own, score in found:
            self._note("final", candidate, steps, len(folds), in_words(own), score, base)
        best = min(found[1:], key=lambda each: each[2].mean, default=None)
        saved, error = gain(best[2], base) if best is not None else (0.0, math.inf)
        tried = tuple(self.tried)
        lost = best is not None and bool(base.error) and not best[2].error
        if best is None or not (lost or saved > STANDARD_ERRORS * error):
            candidate, score = default, base
            reason = "It is the default for such data, and no candidate is better by more than two standard errors."
        else:
            candidate, how, score = best
            less = f"{100 * saved / base.mean:.0f} % less (± {100 * error / base.mean:.0f} %)"
            beside = "the default left the data" if lost else f"the default {base.mean:.3f}: {less}"
            reason = f"It scores {score.mean:.3f}, {beside}. Why it was tried: {candidate.why}."
        most, exact = self._most(candidate, how, steps), self._exact(candidate)
        candidate, more = self._with_best_terms(candidate, steps)
        self.trials.forget()
        return Choice(candidate, how, in_words(how), reason + more, tried, most=most, exact=exact, score=score.mean)

    def _most(self, candidate: Candidate, how: dict[str, float], steps: int) -> int | None:
        """The steps of the final, where a short trial on the same folds was better: more would not help; else None."""
        folds = range(early_folds(self.num_folds))
        long = self.trials.score(candidate, steps, folds, {in_words(how): how})[in_words(how)]
        saved, error = gain(self.short[candidate.name], long)
        return steps if saved > error else None

    def _exact(self, candidate: Candidate) -> bool:
        """Whether no trial says that its twin by moments is clearly worse."""
        twin = None if self.plan.exact is None else combined(candidate, self.plan.exact)
        if twin is None or not {twin.name, candidate.name} <= self.short.keys():
            return True
        saved, error = gain(self.short[candidate.name], self.short[twin.name])
        return not (self.short[twin.name].error or saved > STANDARD_ERRORS * error)

    def _choose_terms(self, folds: range) -> None:
        """Try polynomial drifts, where that of the default is as good as its net."""
        default = self.plan.default
        few = self.plan.sparser(default)
        if few is None:
            return
        self.trials.train([default, few], self.unit, folds)
        if self._as_good(few, default, self.unit, folds):
            self.plan = self.plan.with_few_terms()
        self.trials.forget()

    def _as_good(self, few: Candidate, net: Candidate, steps: int, folds: range) -> str:
        """By how much a polynomial drift changes how likely held-out steps are; nothing where it is worse.

        Of two models that are alike within a standard error, in this and in their paths, the one with fewer parameters is better.
        """
        gained, error = self.trials.likelier(few, net, steps, folds)
        if not gained > -error:
            return ""
        how = usual_sampler(net)
        one, other = (self.trials.score(c, steps, folds, {in_words(how): how})[in_words(how)] for c in (few, net))
        saved, doubt = gain(one, other)
        return f"{gained:+.1g} (± {error:.1g}) nats each" if saved > -doubt else ""

    def _with_best_terms(self, candidate: Candidate, steps: int) -> tuple[Candidate, str]:
        """The candidate with a polynomial drift where that is as good as a net; and the reason in a sentence."""
        net = by_a_net(candidate)
        few = self.plan.sparser(net)
        if few is None:
            return candidate, ""
        few, net = (candidate, net) if candidate.config.net.solved else (few, candidate)
        folds = range(self.num_folds)
        self.trials.train([few, net], steps, folds)
        by = self._as_good(few, net, steps, folds)
        more = f" Its drift is a polynomial with few terms, as good as a net: it changes the likelihood of held-out steps by {by}."
        return (few, more) if by else (net, "")

    def _usual(self, candidate: Candidate, steps: int) -> Score:
        """The score by the sampler that a calibration starts from."""
        how = usual_sampler(candidate)
        return self.trials.score(candidate, steps, range(self.num_folds), {in_words(how): how})[in_words(how)]

    def _calibrated(self, candidate: Candidate, steps: int, score: Score) -> tuple[dict[str, float], Score]:
        """The sampler of a candidate: one setting after the other, each changed where that is clearly better than `score`."""
        folds, how = range(self.num_folds), usual_sampler(candidate)
        others, changes = further_samplers(candidate)
        for part in (others, changes):
            base = how if part is changes else {}
            tried = {in_words({**base, **own}): {**base, **own} for own in part.values()}
            if not tried:
                continue
            scores = self.trials.score(candidate, steps, folds, tried)
            name = min(scores, key=lambda key: scores[key].mean)
            saved, error = gain(scores[name], score)
            if saved > SAMPLER_ERRORS * error:
                how, score = tried[name], scores[name]
        return how, score

    def _note(
        self, name: str, candidate: Candidate, steps: int, folds: int, sampler: str, score: Score, base: Score
    ) -> None:
        saved, error = gain(score, base) if len(score.each) == len(base.each) else (math.nan, math.nan)
        self.tried.append(Tried(name, candidate.name, candidate.why, steps, folds, sampler, score.mean, saved, error))
        self.say(f"{name}: {candidate.name}, {sampler}: {score.mean:.3f}")
