"""Training a network: the plan, the loop, the optimizer, evaluation and checkpoints."""
