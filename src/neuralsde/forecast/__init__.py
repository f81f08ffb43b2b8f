"""Forecasts of held-out paths, their scores beside simple references, and both in words and figures."""
