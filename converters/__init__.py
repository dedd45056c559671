"""Hugging Face weights to hosts, and back. Strict both ways; every fault is reported at once."""

from converters.load import Report, load_host, load_host_with_report, partition
from converters.save import save_host

__all__ = ["Report", "load_host", "load_host_with_report", "partition", "save_host"]
