"""Recipes: short functions that return an `Experiment`; variants change a few fields."""
