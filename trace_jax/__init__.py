"""JAX/Flax system of the TRACE / Feature Recovery Module paper (arXiv 2609.12078)."""

__version__ = "0.1.0"
