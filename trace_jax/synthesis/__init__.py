"""Pictures of objects before and after a fire. One engine: `procedural`."""
