"""Video: frames that train an autoencoder, and clips whose latents a model predicts."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from neuralsde.data.trajectories import Trajectories
from neuralsde.experiments.task import Scores, Task
from neuralsde.experiments.video_config import FramesConfig, VideoConfig
from neuralsde.models.sequence import SequenceModel
from neuralsde.tasks import frames, video
from neuralsde.video.model import save_video_model


class FramesTask(Task[FramesConfig]):
    """Single frames, for an autoencoder."""

    def data(self, seed: int = 0) -> Trajectories:
        return frames.data(self.config, seed)

    def finish(self, model: SequenceModel, data: Trajectories) -> SequenceModel:
        return frames.finish(model, data)

    def score(self, model: SequenceModel, seed: int = 0) -> Scores:
        return Scores(*frames.assess(model, self.config, seed=seed))


class VideoTask(Task[VideoConfig]):
    """The next frames of clips."""

    starts_from_history: ClassVar[bool] = video.STARTS_FROM_HISTORY

    def data(self, seed: int = 0) -> Trajectories:
        return video.data(self.config, seed)

    def save(self, model: SequenceModel, folder: Path) -> None:
        autoencoder, settings = video.frames_by(self.config)
        save_video_model(folder, model, autoencoder, settings=settings)

    def score(self, model: SequenceModel, seed: int = 0) -> Scores:
        return Scores(*video.assess(model, self.config, seed=seed))
