"""Experiments of the paper and beyond: tasks, recipes, runs, comparisons, result tables, demonstrations."""
