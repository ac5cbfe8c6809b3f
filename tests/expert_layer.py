"""A small layer of routed NVFP4 experts, and what it gives by dequantised arithmetic in float32."""

from dataclasses import dataclass

import numpy as np

from decideploy.demo.modelopt import QuantizedWeight, dequantize, quantize_expert

EXPERTS, TOP_K, HIDDEN, INNER, TOKENS = 8, 2, 256, 128, 33
# Of the reference's own size: 4-bit activations cost what 8 levels cost, 16-bit ones next to nothing.
BOUNDS = {"W4A16": 0.02, "W4A4": 0.20}


@dataclass(frozen=True)
class ExpertLayer:
    """Quantised experts, hidden states ``[tokens, hidden]``, logits of the router ``[tokens, experts]``."""

    experts: list[dict[str, QuantizedWeight]]
    hidden: np.ndarray
    router_logits: np.ndarray


def make_layer(seed: int = 0) -> ExpertLayer:
    rng = np.random.default_rng(seed)

    def weight(outputs: int, inputs: int) -> np.ndarray:
        return rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)

    experts = [
        quantize_expert(
            {
                "gate_proj": weight(INNER, HIDDEN),
                "up_proj": weight(INNER, HIDDEN),
                "down_proj": weight(HIDDEN, INNER),
            }
        )
        for _ in range(EXPERTS)
    ]
    hidden, logits = rng.normal(0, 1, (TOKENS, HIDDEN)), rng.normal(0, 2, (TOKENS, EXPERTS))
    return ExpertLayer(experts, as_bf16(hidden), as_bf16(logits))


def as_bf16(values: np.ndarray) -> np.ndarray:
    """Cut to what bf16 holds, so that a kernel's inputs are those of the reference."""
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def route(router_logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights of each token's experts: softmax over all, the best, made to sum to one."""
    shifted = np.exp(router_logits - router_logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    ids = np.argsort(-probabilities, axis=1, kind="stable")[:, :TOP_K]
    chosen = np.take_along_axis(probabilities, ids, axis=1)
    return ids, chosen / chosen.sum(axis=1, keepdims=True)


def reference(layer: ExpertLayer) -> np.ndarray:
    """``[tokens, hidden]`` by the values that the codes stand for."""
    ids, weights = route(layer.router_logits)
    out = np.zeros_like(layer.hidden)
    for expert, projections in enumerate(layer.experts):
        tokens, places = np.nonzero(ids == expert)
        values = {name: dequantize(weight) for name, weight in projections.items()}
        states = layer.hidden[tokens]
        inner = gelu(states @ values["gate_proj"].T) * (states @ values["up_proj"].T)
        out[tokens] += weights[tokens, places, None] * (inner @ values["down_proj"].T)
    return out


def gelu(values: np.ndarray) -> np.ndarray:
    """GELU by its tanh form, as the model has it."""
    return 0.5 * values * (1 + np.tanh(np.sqrt(2 / np.pi) * (values + 0.044715 * values**3)))


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of the difference, over that of ``wanted``; infinite where ``found`` is not finite."""
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))
