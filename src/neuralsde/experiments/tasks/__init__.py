"""Families of data with their scores. A task knows models only through the seam."""
