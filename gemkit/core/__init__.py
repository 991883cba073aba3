"""Tensors, selection, errors and safe files; no training, parts or command line."""
