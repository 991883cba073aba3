"""Networks built by name, for any image shape and number of classes."""
