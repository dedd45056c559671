"""Data folders, feature caches, and the batches that come out of them."""
