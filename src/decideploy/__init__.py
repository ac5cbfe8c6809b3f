"""From a vLLM release and a decision model to a running, proven service."""

__version__ = "0.1.0"
