"""What is known of true states from noisy, partial observations at any times: a Gaussian filter and its smoother.

The law of a step gives the mean and covariance of the next state from a *known* one. Here the state before a step is known up
to N(m, P). Its 2D points on the axes of P go through that same law, each to a mean m_i and a covariance P_i of its own, and

    m' = E m_i ,    P' = Cov(m_i) + E P_i ,    C = Cov(x_i, m_i) ,

are what is known of the state after the step (exact for cubic means; Ito and Xiong, 2000; Arasaratnam and Haykin, 2009). So
filter, likelihood and draws have one law, and for linear fields all of it is the Kalman filter. An observation y = x + noise
updates N(m, P) by Kalman's formula in Joseph's form; entries that were not observed drop out of it. Back in time, the
smoother of Rauch, Tung and Striebel takes its gains from C.

With a history the state is all of its slots (D = H d), one reference step apart: a step shifts them. Where observations come
at other times, older slots lie on straight lines, as they do in draws. Steps are as long as the law allows: `Moments` takes
a gap as a whole, `Euler` in parts of at most one reference step, as draws are made.

Before the first observation the newest slot has the law of the data, N(0, 1) in units of the scale, less the measurement
noise; older slots are behind it by a random walk with steps of the data's size. The likelihood is that of the observations
after the first H, given those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from neuralsde.core.records import RunError, check
from neuralsde.data.trajectories import Trajectories
from neuralsde.data.transition import Transition
from neuralsde.models.scale import Scale
from neuralsde.sde.laws.law import StepLaw
from neuralsde.sde.pairs import LENGTH_TOLERANCE, Gap, slots_after
from neuralsde.solvers.gaussian import cholesky, log_density

MAX_SIZE = 32  # numbers in a state, all slots together
MOST_PARTS = 10_000  # steps in one gap
MAX_POINTS = 2**16  # states that the nets read at once, about
EXACT = 1e-12  # variance of an observation without noise, in units of a typical step's: no covariance is singular
ROUNDING = 1e-13  # share of the variances that keeps roots real
SAME = 1e-3  # share of a reference step by which a gap may be longer than it


@dataclass(frozen=True)
class Belief:
    """N(mean, cov) of states of D numbers, oldest slot first."""

    mean: Float[Tensor, "B D"]
    cov: Float[Tensor, "B D D"]

    @classmethod
    def join(cls, beliefs: list[Belief]) -> Belief:
        """Several, end to end."""
        return cls(torch.cat([b.mean for b in beliefs]), torch.cat([b.cov for b in beliefs]))

    def rows(self, rows: Tensor) -> Belief:
        """Some of them."""
        return Belief(self.mean[rows], self.cov[rows])

    def replace(self, rows: Tensor, other: Belief) -> Belief:
        """Others in these rows."""
        return Belief(self.mean.index_copy(0, rows, other.mean), self.cov.index_copy(0, rows, other.cov))

    @property
    def root(self) -> Float[Tensor, "B D D"]:
        """Lower root of the covariance."""
        return cholesky(self.cov + torch.diag_embed(ROUNDING * torch.diagonal(self.cov, dim1=1, dim2=2)))


@dataclass(frozen=True)
class Posterior:
    """What is known of the true states at the observations of paths, end to end as in `Trajectories`, in raw units."""

    means: Float[Tensor, "L *S"]
    """With a `transform`, medians."""
    covariances: Float[Tensor, "L d d"]
    """Of flattened states; with a `transform`, to first order."""
    log_likelihood: Float[Tensor, " P"]
    """Of the observations of each path after the first `history`, given those."""
    times: Float[Tensor, " L"]
    lengths: Int[Tensor, " P"]

    @property
    def stds(self) -> Float[Tensor, "L *S"]:
        """Standard deviation of each entry."""
        return torch.diagonal(self.covariances, dim1=1, dim2=2).sqrt().reshape(self.means.shape)

    def __len__(self) -> int:
        """Number of paths."""
        return len(self.lengths)

    def __getitem__(self, path: int) -> tuple[Tensor, Tensor]:
        """Means and standard deviations (T, *S) of one path."""
        last = int(self.lengths.cumsum(0)[path])
        rows = slice(last - int(self.lengths[path]), last)
        return self.means[rows], self.stds[rows]


@dataclass(frozen=True)
class Track:
    """What the filter knew at each observation, end to end."""

    after: Belief
    """With that observation."""
    before: Belief
    """Without it."""
    gain: Float[Tensor, "L D D"]
    """From what is learned of the state at an observation to that at the one before."""
    log_density: Float[Tensor, " L"]
    """Of each observation, given those before."""

    @classmethod
    def join(cls, tracks: list[Track]) -> Track:
        """Several, end to end."""
        after, before = ([t.after for t in tracks], [t.before for t in tracks])
        gain, density = ([t.gain for t in tracks], [t.log_density for t in tracks])
        return cls(Belief.join(after), Belief.join(before), torch.cat(gain), torch.cat(density))

    def rows(self, rows: Tensor) -> Track:
        """Some of it."""
        return Track(self.after.rows(rows), self.before.rows(rows), self.gain[rows], self.log_density[rows])


@dataclass(frozen=True)
class Sensor:
    """How states are observed: y = matrix · newest slot + noise."""

    matrix: Float[Tensor, "d d"]
    variance: Float[Tensor, " d"]

    def update(
        self, belief: Belief, y: Float[Tensor, "B d"], seen: Bool[Tensor, "B d"]
    ) -> tuple[Belief, Float[Tensor, " B"]]:
        """What is known after an observation, and its log density. Entries that were not seen say nothing."""
        d = y.shape[1]
        reads = self.matrix * seen[:, :, None]
        noise = torch.diag_embed(torch.where(seen, self.variance, torch.ones_like(y)))
        across = belief.cov[:, :, -d:] @ reads.mT
        total = reads @ across[:, -d:] + noise
        error = (y - (reads @ belief.mean[:, -d:, None])[..., 0]).where(seen, 0.0)
        gain = torch.cholesky_solve(across.mT, cholesky(total)).mT
        # Joseph's form: it stays positive
        eye = torch.eye(belief.mean.shape[1], dtype=y.dtype, device=y.device)
        left = eye - torch.nn.functional.pad(gain @ reads, (eye.shape[0] - d, 0))
        cov = left @ belief.cov @ left.mT + gain @ noise @ gain.mT
        mean = belief.mean + (gain @ error[..., None])[..., 0]
        return Belief(mean, 0.5 * (cov + cov.mT)), log_density(error, total, seen)


@dataclass(frozen=True)
class GaussianFilter:
    """The filter of one model, for one call."""

    law: StepLaw
    coefficients: Any
    """Those of the SDE, as the law takes them."""
    condition: Callable[[Tensor | None, Tensor], Tensor | None]
    """Of the nets, by raw context and time in reference steps."""
    scale: Scale
    walk: Float[Tensor, " d"]
    """Size of a typical step, in units of the scale."""
    slots: int
    padded: bool
    """Whether slots before the start of a path hold its first state."""
    variance: Float[Tensor, " d"]
    """Of the measurement noise, in units of the scale's features."""
    blurred: bool
    """Whether the law of the data has that noise in it."""

    @property
    def size(self) -> int:
        """Numbers in a state."""
        return self.slots * len(self.walk)

    @property
    def takes_whole_gaps(self) -> bool:
        """Whether a gap is one step, however long; else it is taken in parts of at most one reference step."""
        return self.law.spans_gaps and self.slots == 1

    @property
    def sensor(self) -> Sensor:
        """Reads the features of the scale."""
        eye = torch.eye(len(self.walk), dtype=torch.float64, device=self.walk.device)
        matrix = self.scale.back.mT if self.scale.turns else eye
        least = EXACT * (matrix.square() @ self.walk.double().square())
        return Sensor(matrix, torch.maximum(self.variance.double(), least))

    def prior(self, num: int) -> Belief:
        """What is known before the first observation."""
        mean, variance = (v.double().flatten() for v in self.scale.law())
        if self.blurred:
            variance = (variance - self.variance).clamp(min=0.01 * variance)
        walk = self.walk.double().square() * (EXACT if self.padded else 1.0)
        back = torch.arange(self.slots - 1, -1, -1, dtype=torch.float64, device=walk.device)
        shared = torch.minimum(back[:, None], back)[..., None] * walk + variance  # (H, H, d)
        cov = torch.diag_embed(shared).permute(0, 2, 1, 3).reshape(self.size, self.size)
        return Belief(mean.repeat(self.slots).expand(num, -1), cov.expand(num, -1, -1))

    # Over a gap

    def predict(
        self, belief: Belief, gap: Float[Tensor, " B"], time: Float[Tensor, " B"], context: Tensor | None
    ) -> tuple[Belief, Float[Tensor, "B D D"]]:
        """What is known after gaps in reference steps, and the gain back to the state before them.

        `time` is that of the start, since the path began; the context (B, C) is held.
        """
        if self.takes_whole_gaps:
            ahead, cross = self._advance(belief, gap, time, context)
            return ahead, torch.cholesky_solve(cross.mT, ahead.root).mT
        parts = (gap - SAME).ceil().clamp(min=1)
        gain = torch.eye(self.size, dtype=gap.dtype, device=gap.device).expand(len(gap), -1, -1)
        for k in range(int(parts.max())):
            rows = (k < parts).nonzero()[:, 0]
            own, length = belief.rows(rows), (gap / parts)[rows]
            held = None if context is None else context[rows]
            ahead, cross = self._advance(own, length, time[rows] + k * length, held)
            back = torch.cholesky_solve(cross.mT, ahead.root).mT
            belief, gain = belief.replace(rows, ahead), gain.index_copy(0, rows, gain[rows] @ back)
        return belief, gain

    def _advance(
        self, belief: Belief, dt: Tensor, time: Tensor, context: Tensor | None
    ) -> tuple[Belief, Float[Tensor, "B D D"]]:
        """What is known after one step, and its covariance with the state before."""
        n, size = belief.mean.shape
        axes = math.sqrt(size) * belief.root.mT
        away = torch.cat([axes, -axes], dim=1)
        points = (belief.mean[:, None] + away).reshape(n * 2 * size, self.slots, -1)
        each = [None if v is None else v.repeat_interleave(2 * size, 0) for v in (dt, time, context)]
        mean, cov = self._moments(points, *each)  # type: ignore[arg-type]
        # Slots that follow each other by one step, as in training, are shifted whatever the rounding of stamps
        shift = torch.where((dt - 1).abs() <= LENGTH_TOLERANCE, torch.ones_like(dt), dt)
        slots = slots_after(points, mean, shift.repeat_interleave(2 * size)).reshape(n, 2 * size, size)
        none, one = points.new_zeros(n, self.slots, 1), points.new_ones(n, 1)
        newest = slots_after(none, one, shift)[..., 0]  # share of the newest state in each slot
        ahead = slots.mean(1)
        apart = slots - ahead[:, None]
        spread = cov.reshape(n, 2 * size, *cov.shape[1:]).mean(1)
        grown = torch.einsum("nh,nk,nij->nhikj", newest, newest, spread).reshape(n, size, size)
        total = apart.mT @ apart / (2 * size) + grown
        return Belief(ahead, 0.5 * (total + total.mT)), away.mT @ apart / (2 * size)

    def _moments(
        self, points: Float[Tensor, "N H d"], dt: Tensor, time: Tensor, context: Tensor | None
    ) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d d"]]:
        """Mean and covariance of the newest state one step after known ones, by the law, in the precision of its nets."""
        kind = self.walk.dtype
        shape = self.scale.shape
        state = points.to(kind).reshape(*points.shape[:2], *shape)
        length = dt.to(kind).reshape(-1, *[1] * len(shape))

        def conditions(share: float) -> Tensor | None:
            given = self.condition(context, time + share * dt)
            return None if given is None else given.to(kind)

        mean, cov = self.law.step_moments(
            Gap(state, torch.zeros_like(state[:, -1]), length, conditions, None), self.coefficients
        )
        return mean.to(points.dtype), cov.to(points.dtype)

    # One observation

    def known_from(self, y: Float[Tensor, "B d"], seen: Bool[Tensor, "B d"] | None) -> Belief:
        """What is known of a state from one observation of its features."""
        seen = torch.ones_like(y, dtype=torch.bool) if seen is None else seen
        return self.sensor.update(self.prior(len(y)), y, seen)[0]

    def pair_log_prob(self, pairs: Transition) -> Float[Tensor, " B"]:
        """Log density of the second observation of each pair given the first, in units of the features."""
        before, after = (self.scale.features(x.double()).flatten(1) for x in (pairs.history[:, -1], pairs.next))
        seen = torch.ones_like(after, dtype=torch.bool) if pairs.mask is None else pairs.mask.flatten(1)
        gap, time = (v.double() / self.scale.step for v in (pairs.dt, pairs.time))
        ahead, _ = self.predict(self.known_from(before, seen), gap, time, pairs.context)
        return self.sensor.update(ahead, after, seen)[1]

    # Along paths

    def run(self, data: Trajectories) -> Track:
        """Filter all paths side by side."""
        parts = [self._run(data, paths) for paths in self._chunks(data)]
        back = torch.cat([rows for rows, _ in parts]).argsort()
        return Track.join([track for _, track in parts]).rows(back)

    def _chunks(self, data: Trajectories) -> list[Tensor]:
        each = max(1, MAX_POINTS // (2 * self.size * (1 + 2 * len(self.walk))))
        return list(torch.arange(len(data), device=data.lengths.device).split(each))

    def _run(self, data: Trajectories, paths: Tensor) -> tuple[Tensor, Track]:
        """The rows of these paths, in the order in which they were met, and what was known there."""
        y, seen, time = self._read(data)
        lengths, first = data.lengths[paths], (data.lengths.cumsum(0) - data.lengths)[paths]
        sensor, belief = self.sensor, self.prior(len(paths))
        gain = torch.zeros_like(belief.cov)
        met, tracks = [], []
        for k in range(int(lengths.max())):
            own = (k < lengths).nonzero()[:, 0]
            rows = first[own] + k
            before, back = belief.rows(own), gain[own]
            if k > 0:
                gap = time[rows] - time[rows - 1]
                before, back = self.predict(before, gap, time[rows - 1], data.context_at(rows - 1))
            after, density = sensor.update(before, y[rows], seen[rows])
            belief = belief.replace(own, after)
            met.append(rows)
            tracks.append(Track(after, before, back, density))
            check_finite(density, data, rows)
        return torch.cat(met), Track.join(tracks)

    def _read(self, data: Trajectories) -> tuple[Tensor, Tensor, Tensor]:
        """Features (L, d), which of them were observed, and times since the start of the path in reference steps."""
        y = self.scale.features(data.states.double()).flatten(1)
        seen = torch.ones_like(y, dtype=torch.bool) if data.observed is None else data.observed.flatten(1)
        begin = torch.repeat_interleave(data.begin, data.lengths)
        time = (data.times - begin) / self.scale.step
        longest = 0.0 if len(time) < 2 else float(time.diff().max())
        check(
            self.takes_whole_gaps or longest <= MOST_PARTS,
            f"The filter takes a gap in at most {MOST_PARTS:,} training steps. Got a gap of {longest:,.0f}. Use Moments(), "
            "or split the path there.",
        )
        return y, seen, time

    def _after_first(self, data: Trajectories) -> tuple[Tensor, Tensor]:
        """The path of each observation, and whether it is one of those after the first."""
        place = torch.arange(len(data.states), device=data.lengths.device)
        path = torch.repeat_interleave(torch.arange(len(data), device=place.device), data.lengths)
        place = place - (data.lengths.cumsum(0) - data.lengths)[path]
        return path, place >= (1 if self.padded else self.slots)

    def num_counted(self, data: Trajectories) -> Tensor:
        """Observed entries that the likelihood is of, at least 1."""
        _, counted = self._after_first(data)
        seen = torch.ones_like(data.states, dtype=torch.bool) if data.observed is None else data.observed
        return seen[counted].sum().clamp(min=1)

    def log_likelihood(self, track: Track, data: Trajectories) -> Float[Tensor, " P"]:
        """Of each path in raw units, given its first observations."""
        path, counted = self._after_first(data)
        density = track.log_density - self.scale.log_unit(data.states.double(), data.observed)
        return torch.zeros(len(data), dtype=density.dtype, device=density.device).index_add(
            0, path, density.where(counted, 0.0)
        )

    def smooth(self, track: Track, lengths: Tensor) -> Belief:
        """What is known of each state from the whole path."""
        mean, cov = track.after.mean.clone(), track.after.cov.clone()
        first = lengths.cumsum(0) - lengths
        for k in range(int(lengths.max()) - 2, -1, -1):
            rows = first[k + 1 < lengths] + k
            ahead, gain = rows + 1, track.gain[rows + 1]
            change = mean[ahead] - track.before.mean[ahead]
            mean[rows] += (gain @ change[..., None])[..., 0]
            cov[rows] += gain @ (cov[ahead] - track.before.cov[ahead]) @ gain.mT
        return Belief(mean, 0.5 * (cov + cov.mT))

    def posterior(self, belief: Belief, likelihood: Tensor, data: Trajectories) -> Posterior:
        """What is known of the newest slots, in raw units."""
        d = len(self.walk)
        means = self.scale.raw(belief.mean[:, -d:].reshape(-1, *self.scale.shape))
        covs = self.scale.raw_covariance(means, belief.cov[:, -d:, -d:])
        return Posterior(means.float(), covs.float(), likelihood, data.times, data.lengths)


def check_finite(density: Tensor, data: Trajectories, rows: Tensor) -> None:
    """Refuse to go on where the fields led nowhere."""
    if bool(torch.isfinite(density).all()):
        return
    when = float(data.times[rows[int((~torch.isfinite(density)).nonzero()[0])]])
    raise RunError(
        f"The filter lost its state at time {when:g}: the fields there are not finite, or far off the data. Look at the losses "
        "of the model and at outliers of the data, or train longer."
    )
