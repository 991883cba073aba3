"""The generic parts gemkit ships; each module registers through the same hooks as any plugin."""
