"""Data folders as tensorflow-datasets, without TensorFlow."""
