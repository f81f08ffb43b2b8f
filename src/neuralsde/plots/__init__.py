"""Figures: arrays in, Figure out."""
