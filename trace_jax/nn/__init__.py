"""Layers that hosts and FRM share. Nothing numeric is left to a default."""
