"""Scores of sampled paths: arrays in, numbers out."""
