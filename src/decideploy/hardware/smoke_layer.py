"""A small layer of routed NVFP4 experts, and what it gives by dequantised arithmetic in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from decideploy.nvfp4 import QuantizedWeight, dequantize, quantize_expert

# Tokens of each step: kernels choose their tiles by it, and decode, a short prompt and a batch take others.
STEPS: Final = (1, 33, 128)
# Columns of an expert are an odd number of 64, as the model's 704 are: what kernels pad.
EXPERTS, TOP_K, HIDDEN, INNER = 8, 2, 256, 192
# Relative errors: activations of 4 bits cost up to 0.2 here, of 16 bits 0.008; the mildest fault that was
# tried, each group scale taken from the row before, costs 0.37.
BOUNDS: Final = {"W4A16": 0.02, "W4A4": 0.3}
# Largest activations over 448 x 6, as a calibration would find them: inputs, and between projections.
INPUT_SCALES: Final = (5 / 2688, 16 / 2688)

Values = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertLayer:
    """Quantised experts, hidden states ``[tokens, hidden]``, logits of the router ``[tokens, experts]``."""

    experts: tuple[Mapping[str, QuantizedWeight], ...]
    hidden: Values
    router_logits: Values


def make_layer(seed: int = 0) -> ExpertLayer:
    """The layer of ``seed``, with the tokens of all :data:`STEPS`."""
    rng = np.random.default_rng(seed)

    def weight(outputs: int, inputs: int) -> Values:
        return rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)

    experts = tuple(
        quantize_expert(
            {
                "gate_proj": weight(INNER, HIDDEN),
                "up_proj": weight(INNER, HIDDEN),
                "down_proj": weight(HIDDEN, INNER),
            }
        )
        for _ in range(EXPERTS)
    )
    hidden = rng.normal(0, 1, (sum(STEPS), HIDDEN)).astype(np.float32)
    return ExpertLayer(experts=experts, hidden=as_bf16(hidden), router_logits=as_bf16(_logits(rng)))


def _logits(rng: np.random.Generator) -> Values:
    """Apart by more than their rounding: of two equal ones, two programs may take another."""
    ranks = rng.permuted(np.tile(np.linspace(-3, 3, EXPERTS), (sum(STEPS), 1)), axis=1)
    return (ranks + rng.uniform(0, 0.4, ranks.shape)).astype(np.float32)


def as_bf16(values: Values) -> Values:
    """Cut to what bf16 holds, so that a kernel's inputs are those of the reference."""
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def steps(values: Values) -> Iterator[Values]:
    """The rows of each step."""
    yield from np.split(values, np.cumsum(STEPS)[:-1])


def route(router_logits: Values) -> tuple[NDArray[np.intp], Values]:
    """Ids and weights of each token's experts: softmax over all, the best, made to sum to one."""
    shifted = np.exp(router_logits - router_logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    ids = np.argsort(-probabilities, axis=1, kind="stable")[:, :TOP_K]
    chosen = np.take_along_axis(probabilities, ids, axis=1)
    return ids, chosen / chosen.sum(axis=1, keepdims=True)


def reference(layer: ExpertLayer) -> Values:
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


def gelu(values: Values) -> Values:
    """GELU by its tanh form, as the model has it."""
    result: Values = (
        0.5 * values * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (values + 0.044715 * values**3)))
    )
    return result


def relative_error(found: Values, wanted: Values) -> float | None:
    """Of the worst step, root mean square of the difference over that of ``wanted``; None if not finite."""
    if not np.isfinite(found).all():
        return None
    pairs = zip(steps(found), steps(wanted), strict=True)
    return max(float(np.sqrt(np.mean((one - two) ** 2) / np.mean(two**2))) for one, two in pairs)
