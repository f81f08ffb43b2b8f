"""Demonstrations of robots: npz, zarr replay buffers and LeRobot datasets."""
