"""Plugins: the hooks, the registry, and how plugins are loaded and validated."""
