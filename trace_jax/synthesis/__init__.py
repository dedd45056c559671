"""Pictures of objects and scenes before and after a fire: rendered, or by an image model."""
