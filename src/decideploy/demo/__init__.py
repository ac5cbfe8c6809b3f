"""The small synthetic model: complete, deterministic, made without torch."""

from decideploy.demo.model import write_demo_model

__all__ = ["write_demo_model"]
