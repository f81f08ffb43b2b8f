"""Clips of video: reading them, and the scores of autoencoders and of predictions."""
