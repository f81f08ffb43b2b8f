"""Clips of colliding objects: physics, camera, rendering."""
