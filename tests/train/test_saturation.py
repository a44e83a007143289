"""Sites that clamp: their rates, and the warning that names those that clamp too often."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import vtrain
from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.errors import VtrainWarning
from vtrain.graph.step import APART
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.train.runner import RunSummary, train
from vtrain.train.saturation import (
    SATURATION_WARNING_PPM,
    SiteSaturation,
    measure_saturation,
    warn_of_saturation,
)
from vtrain.train.task import CompiledTask

TASK = make_tiny_task(steps=20, commit_every=2, checkpoint_every=4, margin=0)


def train_telling(
    task: CompiledTask, out: Path, key: Ed25519PrivateKey, steps: int | None = None
) -> tuple[RunSummary, list[str]]:
    """A run and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = train(task, out, key=key, engine="cpu", threads=1, steps=steps)
    return summary, [str(each.message) for each in caught if each.category is VtrainWarning]


def test_a_run_that_clamps_too_often_names_each_site_once_and_when(
    tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    summary, told = train_telling(TASK, tmp_path, key)
    assert summary.warnings, "a margin of 0 bits must saturate"
    for site in summary.warnings:
        naming = [text for text in told if re.search(rf"[ ]{re.escape(site.site)} \(\d+\)", text)]
        assert len(naming) == 1, told
        assert re.match(r"in steps \d+ to \d+, more than 100 of a million", naming[0])
        assert (
            "give more calibration_steps or a larger margin (to vtrain.from_torch, or" in naming[0]
        )
        assert "learning_rate" not in naming[0], "no weight reached its bound"


def test_the_rate_is_of_the_steps_since_the_last_checkpoint(
    tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    """The first warning comes with the first interval that clamps, with the rate of that alone."""
    _, told = train_telling(TASK, tmp_path / "run", key, steps=12)
    assert told == [], "nothing clamps so early"
    summary, told = train_telling(TASK, tmp_path / "run", key, steps=16)
    counts = {site.site: site.count for site in summary.saturation}
    late = measure_saturation(TASK.graph, counts, 4)
    named = ", ".join(f"{site.site} ({site.ppm:.0f})" for site in late)
    (text,) = told
    assert text.startswith("in steps 13 to 16, more than 100 of a million elements were clamped ")
    assert f" clamped at {named}, which" in text
    # Whoever goes on is told of later steps, then of what all of the run comes to.
    summary, told = train_telling(TASK, tmp_path / "run", key)
    starts = [text.split(",")[0] for text in told]
    assert starts[0] == "in steps 17 to 20"
    assert set(starts[1:]) <= {"in all of the run"}
    _, told = train_telling(TASK, tmp_path / "run", key)
    (text,) = told
    named = ", ".join(f"{site.site} ({site.ppm:.0f})" for site in summary.warnings)
    assert text.startswith("in all of the run, ")
    assert named in text


def test_a_run_with_enough_bits_says_nothing(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    calm = make_tiny_task(steps=20, commit_every=2, checkpoint_every=4, margin=4)
    summary, told = train_telling(calm, tmp_path, key)
    assert (summary.warnings, told) == ((), [])


def test_rates_are_of_all_elements_put_out() -> None:
    sizes = {node.name: node.outputs[0].size for node in TASK.graph.nodes}
    wide, narrow = "param/w1/next", "param/b2/next"
    found = measure_saturation(TASK.graph, {wide: 64, narrow: 3, "nowhere": 9, "fc1/out": 0}, 50)
    assert [(site.site, site.count) for site in found] == [(narrow, 3), (wide, 64)]
    assert [site.ppm for site in found] == pytest.approx(
        [1e6 * 3 / (50 * sizes[narrow]), 1e6 * 64 / (50 * sizes[wide])]
    )
    assert measure_saturation(TASK.graph, {wide: 64}, 0) == ()


def test_what_helps_depends_on_the_site() -> None:
    def tell(*sites: str) -> str:
        found = [SiteSaturation(site, 1, 200.0) for site in sites]
        with pytest.warns(VtrainWarning) as caught:
            warn_of_saturation(TASK.graph, found, "in 5 steps")
        assert len(caught) == 1
        return str(caught[0].message)

    assert "a lower learning_rate" in tell("param/w1/next")
    assert "profile" not in tell("param/w1/next")
    both = tell("param/w1/next", "x/prepared")
    assert "profile" in both
    assert "a lower learning_rate" in both
    many = tell(*(f"site{i}" for i in range(8)))
    assert "site4 (200) and 3 more, which" in many
    assert "site5" not in many


def test_a_difference_of_which_the_sign_counts_never_clamps_too_much() -> None:
    assert not SiteSaturation(APART, 10, 1e6).is_too_much
    assert SiteSaturation("x", 10, SATURATION_WARNING_PPM + 1).is_too_much
    assert not SiteSaturation("x", 10, SATURATION_WARNING_PPM).is_too_much


def test_inspect_leaves_out_what_cannot_be_right(
    tmp_path: Path, key: Ed25519PrivateKey, capfd: pytest.CaptureFixture[str]
) -> None:
    """A manifest says whatever it likes: no more clamps than elements, by the rule of reports."""
    paths = RunPaths(tmp_path)
    train_telling(TASK, paths.root, key)
    sizes = {node.name: node.outputs[0].size for node in TASK.graph.nodes}
    site, other = "param/w1/next", "param/b2/next"
    most = 20 * sizes[site]
    for counts, left in (
        ({site: most, other: 0}, []),
        ({site: most, other: 2**53}, [1]),
        ({site: most, other: 20 * sizes[other] + 1, "nowhere": 1}, [2]),
    ):
        manifest = replace(read_manifest(paths), counted_steps=20, saturation=counts)
        paths.manifest.write_bytes(encode_manifest(manifest))
        capfd.readouterr()
        assert cli.run(["inspect", str(paths.root), "--json"]) == 0
        value = json.loads(capfd.readouterr().out)
        assert value["saturation"] == [{"site": site, "count": most, "ppm": 1e6}]
        *told, text = value["warnings"]
        assert f"clamped at {site} (1000000), which" in text
        assert [
            line for line in told if "cannot be right in 20 steps, and is left out" in line
        ] == told
        assert [int(re.findall(r"clamped at (\d+) of", line)[0]) for line in told] == left


def test_inspect_has_the_rates_and_warns(
    tmp_path: Path, key: Ed25519PrivateKey, capfd: pytest.CaptureFixture[str]
) -> None:
    summary, _ = train_telling(TASK, tmp_path / "run", key)
    capfd.readouterr()
    assert cli.run(["inspect", str(tmp_path / "run"), "--json"]) == 0
    shown = capfd.readouterr()
    value = json.loads(shown.out)
    assert value["saturation"] == [
        {"site": site.site, "count": site.count, "ppm": round(site.ppm, 3)}
        for site in summary.saturation
    ]
    (text,) = value["warnings"]
    assert text.startswith("in 20 steps, ")
    assert f"warning: {text}" in shown.err
    worst = summary.saturation[0]
    assert f"{worst.site} ({worst.ppm:.0f})" in text
    assert cli.run(["inspect", str(tmp_path / "run")]) == 0
    elements = sum(site.count for site in summary.saturation)
    line = f"{elements} elements clamped at {len(summary.saturation)} sites, the most at "
    assert line + worst.site in capfd.readouterr().out
    manifest = read_manifest(RunPaths(tmp_path / "run"))
    assert dict(manifest.saturation) == {site.site: site.count for site in summary.saturation}
    # Without the count nobody knows, which is not to say that nothing was clamped.
    RunPaths(tmp_path / "run").manifest.unlink()
    assert cli.run(["inspect", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["saturation"] is None
    assert cli.run(["inspect", str(tmp_path / "run")]) == 0
    assert re.search(r"(?m)^saturation +unknown$", capfd.readouterr().out)
    assert vtrain.inspect(tmp_path / "run")._list()["clamped most"] == "unknown"
