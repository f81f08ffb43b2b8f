"""Which models are worth a trial on data of this kind. Each is a change of the default, with the reason for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from neuralsde.core.records import with_settings
from neuralsde.data.diagnosis import Diagnosis
from neuralsde.data.trajectories import Lag
from neuralsde.nets.config import MLPConfig, PolynomialConfig, StepsConfig
from neuralsde.sde.config import Diagonal, Euler, Full, LowRank, Mixture, Moments, NeuralSDEConfig
from neuralsde.training.config import TrainConfig

FEW_TERMS = "few terms"
LAGS_OF_A_PATH = 33  # in which a smooth path is learned, to begin with
SMALL, MIDDLE, USUAL = MLPConfig(width=64, depth=2), MLPConfig(width=128, depth=2), MLPConfig(width=128, depth=3)
USUAL_MOMENTS = Moments()
MANY = 8  # dimensions from which on nets are wider
SLOTS, MORE_SLOTS, OF_STEPS_ALONE = 4, 16, 8  # of models of steps: beside the level, and without it
GOES = 0.5  # share of the variance of the mean path from which on paths go somewhere
SEVERAL = 3  # paths from which on the time since the start is told apart from the state
MOST_FULL, MOST_MOMENTS = 16, 8  # dimensions
FEW = 3  # dimensions of a plain SDE up to which it is trained last by the moments of whole gaps
FEW_OF_MUCH = 10  # the same, where its steps and the time are many; small nets can afford it
LARGEST_SMOOTH, LARGEST_ROUGH = 256, 8_192  # batches of the last training
PART = 8  # batches, at least, that the data make
MUCH = 20_000  # rough steps per dimension beyond which little is left to choose and much to learn
LAST, LONG_LAST = 0.3, 0.75  # of the budget, at least, that the last training takes; where rough steps are that many
JITTER = 0.58  # growth of increments above which there is more than noise
COARSE = 0.48  # growth of increments below which states revert within a gap


@dataclass(frozen=True)
class Candidate:
    """A model to be tried."""

    name: str
    settings: Mapping[str, Any]  # fields of NeuralSDEConfig, and `lag`
    why: str
    cost: float = 1.0  # of a training step, in steps of the default

    @property
    def lag(self) -> Lag:
        """Time between the states of a transition."""
        return self.settings.get("lag")

    @cached_property
    def config(self) -> NeuralSDEConfig:
        """Its settings; a combination that cannot be is refused."""
        own = {name: value for name, value in self.settings.items() if name != "lag"}
        return with_settings(NeuralSDEConfig(net=SMALL), own)

    def same_as(self, other: Candidate) -> bool:
        """Whether both are one model of one lag."""
        return self.lag == other.lag and self.config == other.config

    def with_(self, move: Move) -> Candidate:
        """The same with one thing changed."""
        name = move.name if self.name in ("default", "") else f"{self.name}, {move.name}"
        return Candidate(name, {**self.settings, **move.settings}, move.why, self.cost * move.cost)


@dataclass(frozen=True)
class Move:
    """One change of a model, and what in the data speaks for it."""

    name: str
    settings: Mapping[str, Any]
    why: str
    cost: float = 1.0
    told: bool = False  # whether it follows from the diagnosis of rough paths without a trial


@dataclass(frozen=True)
class Plan:
    """What is tried on data of one kind."""

    default: Candidate
    first: list[Candidate]  # beside the default
    moves: list[Move]  # of the best of these
    train: TrainConfig
    largest: int = LARGEST_SMOOTH  # batch of the last training
    last: float = LAST  # share of the budget that it takes, at least
    exact: Move | None = None  # of plain SDEs, before the last training
    sparse: Move | None = None  # of what was chosen, where steps that it has not seen are then likelier

    def with_costs(self, costs: Mapping[str, float]) -> Plan:
        """With costs of a step as measured, by name; in steps of the default, which costs 1 then."""
        if not costs:
            return self
        plain = self._plain()

        def measured(base: Candidate | None, move: Move | None) -> Move | None:
            made = combined(base, move) if base and move else None
            if base is None or move is None or made is None or not {base.name, made.name} <= costs.keys():
                return move
            return replace(move, cost=costs[made.name] / costs[base.name])

        return replace(
            self,
            default=replace(self.default, cost=1.0),
            first=[replace(c, cost=costs.get(c.name, c.cost)) for c in self.first],
            moves=[measured(self.default, move) or move for move in self.moves],
            exact=measured(plain, self.exact),
            sparse=measured(plain, self.sparse),
        )

    def every(self) -> list[Candidate]:
        """The default, what is tried beside it, changes of the default, and what may become of a plain one; one of each name."""
        plain = self._plain()
        made = [combined(self.default, move) for move in self.moves]
        made += [combined(plain, move) for move in (self.exact, self.sparse) if plain and move]
        return list({c.name: c for c in (self.default, *self.first, *made) if c is not None}.values())

    def _plain(self) -> Candidate | None:
        """The first candidate that the last training changes."""
        return next((c for c in (self.default, *self.first) if _is_plain(c)), None)

    def with_few_terms(self) -> Plan:
        """With polynomial drifts, where that can be."""
        default, *first = (self.sparser(c) or c for c in (self.default, *self.first))
        return replace(self, default=default, first=first)

    def sparser(self, candidate: Candidate) -> Candidate | None:
        """The candidate with a polynomial drift in place of a perceptron's; nets of steps have nothing like it."""
        net = candidate.config.net
        if self.sparse is None or type(net) is not MLPConfig:
            return None
        return combined(candidate, replace(_few_terms(net), cost=self.sparse.cost))

    def trained_last(self, candidate: Candidate) -> Candidate:
        """As the last training has it: a plain SDE with the moments of whole gaps, any other candidate as it is.

        Both laws draw alike at the gaps of the data, where these are even. Euler's fields belong to these gaps alone: over a gap of
        0.5 a rate of 1 is learned as 0.79. Fields learned by the moments are those of the SDE.
        """
        made = combined(candidate, self.exact) if self.exact is not None and _is_plain(candidate) else None
        return candidate if made is None else replace(made, name=candidate.name, why=candidate.why)


def _is_plain(candidate: Candidate) -> bool:
    """Whether it is an SDE of the state alone, learned from start states without noise on them."""
    config = candidate.config
    return isinstance(config.law, Euler) and config.history == 1 and config.start_probability == 1 and not config.noisy


def plan(
    found: Diagnosis,
    fixed: Mapping[str, Any] | None = None,
    *,
    large: bool = False,
    long: bool = False,
    moments: Moments = USUAL_MOMENTS,
) -> Plan:
    """The trials for data of this kind; what is `fixed` by the caller is so in all of them. `long`: there is time for moments.

    Nets are not shared: one trunk for drift, diffusion and denoiser takes half the time and scored worse on every kind of
    data. They may be larger.
    """
    fixed = dict(fixed or {})
    smooth = "smooth" in found and ("second order" in found or found.together >= GOES)
    much = not smooth and not _few(found)
    few, many = (FEW_OF_MUCH, FEW_OF_MUCH) if much and long else (FEW, MANY)
    net = USUAL if large else MIDDLE if found.dimensions > many else SMALL
    usual: dict[str, Any] = {"net": net}
    default, first, moves = _smooth(found, usual) if smooth else _rough(found, usual, moments)
    made: list[Candidate] = []
    for each in (default, *first):
        if "net" in fixed and isinstance(each.settings["net"], StepsConfig):
            continue
        own = replace(each, settings={**each.settings, **fixed})
        if _possible(own) and not any(own.same_as(other) for other in made):
            made.append(own)
    if not made:  # what is fixed goes with none of them
        made.append(Candidate("yours", {**usual, **fixed}, "the settings that were given"))
        assert made[0].config is not None  # says what does not go together
    moves = [m for m in moves if not set(m.settings) & set(fixed)]
    train = TrainConfig(batch_size=128 if smooth else 256, lr=3e-3 if net is SMALL else 2e-3, ema=0.99)
    largest = LARGEST_SMOOTH if smooth else min(LARGEST_ROUGH, max(found.num_steps // PART, LARGEST_SMOOTH))
    alike = found.dimensions <= few and found.complete and not smooth and "irregular" not in found
    exact = _moments(found, moments) if alike and "law" not in fixed else None
    last = LONG_LAST if much else LAST
    sparse = None if smooth or "net" in fixed else _few_terms(net)
    return Plan(made[0], made[1:], moves, train, largest, last, exact, sparse)


def _few_terms(net: MLPConfig) -> Move:
    """A polynomial for the drift, and perceptrons like the usual ones beside it."""
    own = PolynomialConfig(width=net.width, depth=net.depth)
    return Move(FEW_TERMS, {"net": own}, "a polynomial with few terms is told more sharply than a net")


def _few(found: Diagnosis) -> bool:
    """Whether there are few steps for their dimensions."""
    return found.num_steps <= MUCH * found.dimensions


def _possible(candidate: Candidate) -> bool:
    try:
        return candidate.config is not None
    except ValueError:
        return False


def combined(one: Candidate, move: Move) -> Candidate | None:
    """A candidate with one more change, where that can be."""
    made = one.with_(move)
    return made if _possible(made) and not made.same_as(one) else None


def of_few_terms(candidate: Candidate) -> Candidate | None:
    """The candidate with a polynomial drift, where that can be."""
    return candidate if candidate.config.net.solved else combined(candidate, _few_terms(SMALL))


def by_a_net(candidate: Candidate) -> Candidate:
    """The candidate with a net in place of a polynomial."""
    net = candidate.config.net
    if not net.solved:
        return candidate
    name = ", ".join(part for part in candidate.name.split(", ") if part != FEW_TERMS)
    return replace(candidate, name=name or "default", settings={**candidate.settings, "net": net.beside})


def _smooth(found: Diagnosis, usual: dict[str, Any]) -> tuple[Candidate, list[Candidate], list[Move]]:
    """The default for smooth paths, what is tried beside it, and changes of these.

    Measured on 22 drawn shapes, forks and oscillators: where several paths start alike, the time since the start tells where on
    the path a state is; paths that only go on, such as those of an oscillator, are told by the steps of their past.
    """
    lag = _round_lag(found)
    two = {"history": 2, "pad_history": True}
    isotropic = {"normalise": "isotropic"} if found.dimensions in (2, 3) and not found.uneven else {}
    base = {**usual, **isotropic, **_season(found)}
    inner = {"lag": lag, "tau": 0.5, "noise": 0.02}
    why = "a smooth path is decided over more than one step and moves between observations"
    untimed = Candidate("lag, inner states", {**base, **inner}, why)
    timed = Candidate(
        "lag, inner states, time", {**base, **inner, "time_input": True}, f"{why}; time tells where it is"
    )
    slots = Candidate(
        "lag, history 2, time",
        {**base, **two, "lag": lag, "noise": 0.02, "time_input": True},
        "two slots show the velocity, time where on the path a state is",
        1.1,
    )
    step = Candidate("history 2", {**base, **two, "noise": 0.01}, "two slots, one step apart, show the velocity")
    three = {**base, **two, "history": 3, "noise": 0.1}
    several = found.num_paths >= SEVERAL
    of_steps = _of_steps(found, Candidate("", base, ""))
    tried = [
        *((timed, slots) if several else (untimed,)),
        step,
        *of_steps,
        Candidate("history 3", three, "three slots, with noise against error", 1.2),
        *_principal(found, {**usual, **two, "history": 3, "noise": 0.1}),
        Candidate("one step", {**usual, **_season(found)}, "the paper's state: one observation, one step"),
    ]
    alone = not several and of_steps  # one path holds little evidence for leaving a default
    default = timed if found.together >= GOES else of_steps[0] if alone else step
    first = [candidate for candidate in tried if candidate is not default]
    moves = [
        Move("noise 0.004", {"noise": 0.004}, "less noise, finer detail"),
        Move("noise 0.05", {"noise": 0.05}, "more noise, paths that find back"),
        Move("noise 0.2", {"noise": 0.2}, "much noise, against few data"),
        *_more_directions(found),
        Move("half the lag", {"lag": lag and lag / 2}, "finer steps"),
        *([Move("no time", {"time_input": False}, "the field is the same at all times")] if several else []),
        Move("twice the lag", {"lag": lag and lag * 2}, "longer steps"),
        *_shared_moves(found),
    ]
    return default, first, [m for m in moves if "lag" not in m.settings or m.settings["lag"]]


def _of_steps(found: Diagnosis, base: Candidate) -> list[Candidate]:
    """Models that see the steps of the past: with the level where that says more, without it where paths wander.

    Their steps are of one gap: where gaps differ, they are not tried.
    """
    if "irregular" in found:
        return []
    plain = {"pad_history": True, "noise": 0.0, "denoiser": None}
    level = {"net": StepsConfig(level=True), "history": SLOTS, **plain}
    made = []
    if any(name in found for name in ("measurement noise", "second order", "smooth")):
        made.append(base.with_(Move("steps and level", level, "the past says where the state is")))
    if "second order" in found:
        longer = {**level, "history": MORE_SLOTS}
        made.append(base.with_(Move("longer memory", longer, "what is not seen is told by a longer past", 1.3)))
    if "wanders" in found:
        steps = {"net": StepsConfig(), "history": OF_STEPS_ALONE, **plain}
        made.append(base.with_(Move("steps", steps, "what happens next is the same wherever a path is")))
    return made


def _round_lag(found: Diagnosis) -> float | None:
    """A lag of which a typical path holds about 33, in whole steps; None: one step."""
    steps = max(1, round(found.path_steps / LAGS_OF_A_PATH))
    return None if steps == 1 else steps * found.gap


def _rough(found: Diagnosis, usual: dict[str, Any], moments: Moments) -> tuple[Candidate, list[Candidate], list[Move]]:
    """The default for rough paths has no noise on its inputs and what the diagnosis says beyond doubt; the rest is tried."""
    plain = {**usual, "noise": 0.0, "denoiser": None}
    coarse = "irregular" in found or found.value("rough") < COARSE
    law = _moments(found, moments) if coarse and found.dimensions <= MOST_MOMENTS else None
    moves = _shared_moves(found)
    told = [m for m in moves if m.told]
    told = [m for m in told if not any(set(m.settings) & set(other.settings) for other in told[: told.index(m)])]
    default = Candidate("default", plain, "every step tells of the noise as it is")
    for move in told:
        default = replace(default.with_(move), name="default")
    first = (
        [Candidate("plain", plain, "noise that is Gaussian, uncorrelated and the same at all times")] if told else []
    )
    if law:
        first.append(Candidate("moments", {**plain, **law.settings}, law.why, law.cost))
    first += [default.with_(m) for m in moves if m not in told]
    if "smooth" in found:  # and a state tells all of what is next
        lag, why = _round_lag(found), "a smooth path moves between observations"
        first.append(Candidate("lag, inner states", {**usual, "lag": lag, "tau": 0.5, "noise": 0.02}, why))
    of_steps = _of_steps(found, default)
    if of_steps and "wanders" in found and found.num_paths == 1:  # what comes is at levels that were never seen
        levels = replace(default, name="levels", why="a level may tell where a path goes")
        first, default = [levels, *first], of_steps.pop()
    first += of_steps
    if found.value("rough") > JITTER:
        slots = {"history": 3, "pad_history": True, "noise": 0.1}
        why = "a smooth motion with jitter: several slots tell one from the other"
        first.append(Candidate("history 3, noise 0.1", {**usual, **slots}, why, 1.6))
        first += _principal(found, {**usual, **slots})
        moves.append(Move("noise 0.2", {"noise": 0.2}, "much noise, against few data"))
    else:
        first += _principal(found, plain)
    few = _few(found)
    if few:
        first.append(Candidate("input noise", usual, "noise on the inputs and a denoiser, against few data", 1.4))
    moves = [
        *([law] if law else []),
        *([Move("noise 0.05", {"noise": 0.05}, "noise on the inputs, against few data")] if few else []),
        *_more_directions(found),
        *moves,
    ]
    return default, first, moves


def _moments(found: Diagnosis, law: Moments) -> Move:
    why = "the mean and covariance of the whole gap, not of its beginning"
    return Move("moments", {"law": law}, why, 3.0 + found.dimensions / 2)


def _principal(found: Diagnosis, settings: dict[str, Any]) -> list[Candidate]:
    """A model of the directions that hold most of the variance, where these are few."""
    if "few directions" not in found:
        return []
    num = int(found.value("few directions"))
    own: dict[str, Any] = {"normalise": "principal", "directions": num, "covariance": Diagonal()}
    if num <= MANY:  # one size smaller
        own["net"] = {MIDDLE: SMALL, USUAL: MIDDLE}.get(settings["net"], settings["net"])
    return [Candidate("few directions", {**settings, **own}, "many features move in few directions", 1.2)]


def _season(found: Diagnosis) -> dict[str, Any]:
    """The phase of a season as an input of the nets, where there is one."""
    return {"time_input": found.value("season")} if "season" in found else {}


def _more_directions(found: Diagnosis) -> list[Move]:
    if "few directions" not in found:
        return []
    return [Move("twice the directions", {"directions": 2 * int(found.value("few directions"))}, "finer detail")]


def _shared_moves(found: Diagnosis) -> list[Move]:
    moves = []
    if "correlated noise" in found and "rough" in found:
        covariance = Full() if found.dimensions <= MOST_FULL else LowRank(rank=min(8, found.dimensions // 2))
        why = "the noise of features goes together"
        moves.append(Move("correlated noise", {"covariance": covariance}, why, 1.4, told=True))
    few = "few directions" in found  # of the others, which hardly move, there is nothing to learn
    if "heavy tails" in found and "rough" in found and not few:
        law = {"law": Mixture(), "covariance": Diagonal()}
        moves.append(Move("mixture", law, "steps are not Gaussian", 1.4, told=True))
    if "positive" in found:
        why = "states are above 0 and move in proportion to their level"
        moves.append(Move("logarithm", {"transform": "log"}, why, told="proportional" in found))
    if "between 0 and 1" in found:
        moves.append(Move("logit", {"transform": "logit"}, "states lie between 0 and 1 and come near both"))
    if "fast directions" in found and not few:
        moves.append(Move("whitened", {"normalise": "whiten"}, "a narrow direction reverts fast"))
    if "season" in found:
        moves.append(Move("season", _season(found), "steps depend on the phase of a season", told=True))
    if "time since start" in found:
        moves.append(Move("time", {"time_input": True}, "steps depend on the time since the start", told=True))
    return moves
