"""Tickets, results, presets, plugins and parts as text, tables and plots."""
