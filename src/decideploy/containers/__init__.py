"""Container images: stage what one is built from, tell how to build it, and explain how two differ."""

from decideploy.containers.command import BUILDERS, build_command
from decideploy.containers.context import ImageContext, stage_context
from decideploy.containers.difference import ImageDifference, compare_images
from decideploy.containers.images import TARGETS, Images, load_images
from decideploy.containers.stored import StoredImage, open_image

__all__ = [
    "BUILDERS",
    "TARGETS",
    "ImageContext",
    "ImageDifference",
    "Images",
    "StoredImage",
    "build_command",
    "compare_images",
    "load_images",
    "open_image",
    "stage_context",
]
