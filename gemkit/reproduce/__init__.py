"""The paper's tables, run again: the presets that make one, how it is scaled, what comes of it."""
