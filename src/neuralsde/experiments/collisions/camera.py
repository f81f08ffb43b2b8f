"""The camera of the colliding objects: a pinhole that looks down at the plane z = 0; x goes right, y away from it, z up.

Images are square; a place in an image is (across, down) in units of its side, so that the middle of pixel i of n is
(i + ½) / n. The visible part of the plane is a trapezoid.
"""

from __future__ import annotations

import math

import numpy as np

ELEVATION = math.radians(38.0)  # of the camera, above the plane
DISTANCE = 8.5  # from the camera to where it looks
TARGET = np.array([0.0, 0.35, 0.0])
HALF_WIDTH = math.tan(math.radians(16.0))  # of the image, at unit distance
RIGHT = np.array([1.0, 0.0, 0.0])
UP = np.array([0.0, math.sin(ELEVATION), math.cos(ELEVATION)])
FORWARD = np.array([0.0, math.cos(ELEVATION), -math.sin(ELEVATION)])
EYE = TARGET - DISTANCE * FORWARD


def project(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places (..., 2) in the image of points (..., 3), and their depths (...)."""
    from_eye = np.asarray(points, np.float64) - EYE
    depth = np.asarray(from_eye @ FORWARD)
    plane = np.stack([from_eye @ RIGHT, -(from_eye @ UP)], axis=-1)
    return 0.5 + plane / (2 * HALF_WIDTH * depth[..., None]), depth


def on_ground(places: np.ndarray) -> np.ndarray:
    """(..., 2): the x, y of the plane that are seen at places (..., 2)."""
    plane = 2 * HALF_WIDTH * (np.asarray(places, np.float64) - 0.5)
    directions = FORWARD + plane[..., :1] * RIGHT - plane[..., 1:] * UP  # of the rays, one unit deep
    return (EYE + directions * (-EYE[2] / directions[..., 2:]))[..., :2]


CORNERS = on_ground(np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))
"""(4, 2): of the visible part of the plane, anticlockwise from near left."""
_EDGES = np.roll(CORNERS, -1, axis=0) - CORNERS
OUTWARD = np.stack([_EDGES[:, 1], -_EDGES[:, 0]], axis=1) / np.linalg.norm(_EDGES, axis=1, keepdims=True)
"""(4, 2): unit normals of the sides."""


def outside(points: np.ndarray) -> np.ndarray:
    """(...): how far points (..., 2) of the plane lie beyond the side that they are most beyond; negative in view."""
    return np.max(np.sum((np.asarray(points)[..., None, :] - CORNERS) * OUTWARD, axis=-1), axis=-1)
