"""References are stamped only where old and new code agree."""

import references


def test_answers_differ_in_names_outcomes_and_numbers_beyond_a_millionth():
    old = {"claims": [{"value": 1.0, "outcome": "held", "n": 3}], "sigma": 0.5}
    close = {"claims": [{"value": 1.0 + 9e-7, "outcome": "held", "n": 3}], "sigma": 0.5}
    assert list(references.differences(old, close)) == []
    far = {"claims": [{"value": 1.001, "outcome": "not held", "n": 4}]}
    assert list(references.differences(old, far)) == [
        "results.claims[0].n: 3 and 4",
        "results.claims[0].outcome: held and not held",
        "results.claims[0].value: 1.0 and 1.001",
        "results.sigma: 0.5 and None",
    ]
    assert list(references.differences([1], [1, 2])) == ["results: [1] and [1, 2]"]


def test_every_reference_is_a_notebooks():
    for name, run in references.records().items():
        assert run is not None, f"{name} is damaged"
        assert name.startswith(references.notebook_of(run).name[3:])
