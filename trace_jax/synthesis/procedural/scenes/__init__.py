"""Procedural scenes: rooms and yards with objects in them, before and after a fire."""

from trace_jax.synthesis.procedural.scenes.scene import (
    ScenePicture,
    SceneRequest,
    render_scene,
    scene_name,
    scene_type_of,
)

__all__ = ["ScenePicture", "SceneRequest", "render_scene", "scene_name", "scene_type_of"]
