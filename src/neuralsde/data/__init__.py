"""The door of the data: what users have in memory and in files, checked, described and accounted for."""
