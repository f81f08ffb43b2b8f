"""Other sequence models behind the same seam, for comparison."""
