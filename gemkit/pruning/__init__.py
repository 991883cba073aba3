"""The search: masks over a network, the update, freezing, rewinding, and fine-tuning a ticket."""
