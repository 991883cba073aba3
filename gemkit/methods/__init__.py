"""One module per method: its scores, and the pruners made with them."""
