"""The expected calibration error against torchmetrics, apart because it imports torch."""

import pytest
from calibration_data import drawn

from decideploy.calibrate import expected_calibration_error, measure, probabilities_at

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("options", "n"), [(2, 300), (6, 1000), (16, 500)])
def test_calibration_error_agrees_with_torchmetrics(options: int, n: int) -> None:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    scored = drawn(n, temperature=1.6, options=options, seed=options)
    probabilities, labels = probabilities_at(scored.scores, 1.0), scored.labels
    figures = measure(probabilities, labels, seed=0)
    for bins, figure in ((10, figures.ece_10), (15, figures.ece_15)):
        oracle = multiclass_calibration_error(
            torch.from_numpy(probabilities), torch.from_numpy(labels), num_classes=options, n_bins=bins
        )
        assert figure.value == pytest.approx(float(oracle), abs=1e-6)
        assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(figure.value)
