"""Push-T: the simulator, episodes, and pictures of both."""
