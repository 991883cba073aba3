"""The paper's tables: their presets, how they are scaled, their results and figures."""
