"""Pins: recipes (intent), locks (what they came to), and verified download."""

from decideploy.pins.artifact import Artifact
from decideploy.pins.fetch import fetch
from decideploy.pins.lock import Lock, check_lock, check_requirements, load_lock
from decideploy.pins.recipe import Recipe, load_recipe, recipe_names
from decideploy.pins.root import cache_folder, data_root, home_folder

__all__ = [
    "Artifact",
    "Lock",
    "Recipe",
    "cache_folder",
    "check_lock",
    "check_requirements",
    "data_root",
    "fetch",
    "home_folder",
    "load_lock",
    "load_recipe",
    "recipe_names",
]
