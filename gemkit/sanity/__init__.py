"""Sanity checks: controls for a ticket, trained over several seeds, and verdicts on them."""
