"""The small synthetic model: complete, deterministic, made without torch."""

from decideploy.demo.model import demo_model_name, write_demo_model

__all__ = ["demo_model_name", "write_demo_model"]
