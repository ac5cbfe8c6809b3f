"""Write the demo model's golden decisions with the reference engine: transformers and PEFT in float32.

python tests/integration/record_golden.py [OUT]

Run by hand after a change of the demo model or of the golden questions; ``test_golden_reference.py`` fails
until then.
"""

import sys
import tempfile
from pathlib import Path

SOURCE = "transformers and PEFT in float32"
# Far below the tolerance, and below what another machine's order of sums changes.
DIGITS = 4


def record(model):
    from reference import Reference

    from decideploy.artifacts.digest import model_digest
    from decideploy.decide import PromptEncoder, render
    from decideploy.serve.golden import Golden, GoldenDecision
    from decideploy.serve.questions import golden_questions

    questions = golden_questions()
    encoder, reference = PromptEncoder.from_model(model), Reference(model)
    asked = (
        [encoder.encode(render(question)) for question in questions],
        [question.kind for question in questions],
        [len(question.answer_options) for question in questions],
    )
    read = zip(questions, reference.probabilities(*asked), reference.base_probabilities(*asked), strict=True)
    return Golden(
        model_sha256=model_digest(model),
        source=SOURCE,
        decisions=tuple(
            GoldenDecision(
                **question.model_dump(include={"kind", "state", "question", "options"}),
                probabilities=rounded(adapted),
                base_probabilities=rounded(base),
            )
            for question, adapted, base in read
        ),
    )


def rounded(probabilities):
    return tuple(round(float(value), DIGITS) for value in probabilities)


def main():
    from decideploy.demo import write_demo_model
    from decideploy.demo.model import GOLDEN

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_demo_model(model)
        record(model).write(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
