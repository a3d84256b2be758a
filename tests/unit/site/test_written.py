"""Numbers of the written pages come from records."""

import json
import re
import shutil

import jinja2
import pytest

from gaussmark_lib.errors import RecordError
from gaussmark_lib.site import written

JOINT = (written.PAGES / "joint_law.md").read_text(encoding="utf-8")


def test_a_page_says_what_its_record_says(tmp_path):
    shutil.copytree(written.REFERENCE / "one_key_in_production", tmp_path / "one_key_in_production")
    assert written.filled(JOINT, tmp_path) == written.filled(JOINT)
    path = tmp_path / "one_key_in_production" / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    results["audit"]["source"]["max ψ"] = 0.123
    results["claims"] = [
        (
            row | {"value": 7.89, "low": 7.0, "high": 8.5}
            if "innovation of the forged" in row["claim"]
            else row
        )
        for row in results["claims"]
    ]
    path.write_text(json.dumps(results), encoding="utf-8")
    changed = written.filled(JOINT, tmp_path)
    assert "<td>12%</td>" in changed
    [n] = [row["n"] for row in results["claims"] if "innovation of the forged" in row["claim"]]
    assert f"7.9 (7.0 to 8.5), n = {n}" in changed


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{{ record("no_such") }}', RecordError),
        ('{{ record("../presets") }}', RecordError),
        ('{{ claim(record("speed"), "no such claim") }}', RecordError),
        ('{{ record("speed").results["no such number"] }}', jinja2.UndefinedError),
    ],
)
def test_what_a_record_does_not_have_is_an_error(text, error):
    with pytest.raises(error):
        written.filled(text)


def test_the_joint_law_s_table_is_in_no_way_typed():
    """Where a number of a results section stands in the source, it is a place, a level or part of a
    formula.
    """
    table = JOINT[JOINT.index("## 5") : JOINT.index("## 6")]
    assert re.findall(r"\d+\.\d+|\d+%", re.sub(r"\{[{%].*?[%}]\}", "", table)) == ["0.05", "0.05"]
