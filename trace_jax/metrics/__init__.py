"""Measures on plain numpy arrays; importing this package never imports jax."""
