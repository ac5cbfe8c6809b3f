"""Fit one temperature a kind to labelled decisions of a running server, and say how good it is."""

from decideploy.calibrate.data import DataError, Dataset, Example, Excluded, read_dataset
from decideploy.calibrate.document import calibration_document, write_calibration
from decideploy.calibrate.fit import Fit, fit_temperature, probabilities_at
from decideploy.calibrate.kinds import KindReport, Scored, fit_kind
from decideploy.calibrate.metrics import Metrics, expected_calibration_error, measure
from decideploy.calibrate.report import print_report
from decideploy.calibrate.run import CalibrationReport, calibrate

__all__ = [
    "CalibrationReport",
    "DataError",
    "Dataset",
    "Example",
    "Excluded",
    "Fit",
    "KindReport",
    "Metrics",
    "Scored",
    "calibrate",
    "calibration_document",
    "expected_calibration_error",
    "fit_kind",
    "fit_temperature",
    "measure",
    "print_report",
    "probabilities_at",
    "read_dataset",
    "write_calibration",
]
