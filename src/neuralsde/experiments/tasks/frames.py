"""Frames of video, to train and score an autoencoder: how well it draws frames that it has not seen."""

from __future__ import annotations

import torch

from neuralsde.data.trajectories import Trajectories
from neuralsde.experiments.task import Scores, Task
from neuralsde.experiments.tasks.clips import check_part, checksums, read_clips, read_groups
from neuralsde.experiments.video_config import FramesConfig
from neuralsde.metrics.video import quality
from neuralsde.models.sequence import SequenceModel
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.clips import one_path
from neuralsde.video.predict import as_values, device


class FramesTask(Task[FramesConfig]):
    """Single frames, for an autoencoder."""

    def data(self, seed: int = 0) -> Trajectories:
        config = self.config
        check_part(config.clips, "test")
        clips = read_clips(config.clips, "train", -(-config.num_frames // config.clips.length))[0]
        return one_path(as_values(clips.flatten(0, 1)[: config.num_frames].to(device())))

    def checksums(self) -> dict[str, str]:
        return checksums(self.config.clips)

    def finish(self, model: SequenceModel, data: Trajectories) -> SequenceModel:
        """Set the units of the latents: the last step before an autoencoder is frozen."""
        assert isinstance(model, Autoencoder)
        model.fit_latents(data.states)
        return model

    def score(self, model: SequenceModel, seed: int = 0) -> Scores:
        """PSNR and SSIM of frames of the test part: the ceiling of every prediction that is decoded from latents."""
        assert isinstance(model, Autoencoder)
        clips, num_test = self.config.clips, self.config.num_test
        num_clips = -(-num_test // clips.length)
        frames = read_clips(clips, "test", num_clips)[0].flatten(0, 1)
        truth = as_values(frames[:num_test]).to(model.shift.device)
        drawn = model.decode(model.encode(truth))
        sizes = {"num_frames": len(truth), "parameters": sum(p.numel() for p in model.parameters())}
        clip = torch.arange(len(truth)) // clips.length
        recordings = read_groups(clips, "test", num_clips)
        groups = clip if recordings is None else recordings[clip]
        return Scores(sizes | quality(drawn[:, None], truth[:, None], groups)[0])
