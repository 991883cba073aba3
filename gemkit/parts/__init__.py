"""The parts of a recipe: one module per kind, the recipe itself, and which parts fit together."""
