"""What `gemkit run` does, for everybody: the description of a run, its folder, and its result."""
