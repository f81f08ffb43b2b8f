"""Other ways to learn an SDE, beside ours: the same prior SDE in the same units, trained by each rival's own objective."""
