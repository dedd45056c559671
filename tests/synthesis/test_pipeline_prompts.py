"""Templates carry what Appendix B says; a user's own are checked before anything is sent."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from synthesis import stand_in
from synthesis.stand_in import KEY, POOR, Slow, picture

from trace_jax import taxonomy
from trace_jax.data import manifest
from trace_jax.errors import FaultsError, UserError
from trace_jax.runs import pipeline
from trace_jax.synthesis import prompts, references
from trace_jax.synthesis.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
WORDS = taxonomy.load()
KIND = WORDS.types["mug"]
MUG = taxonomy.IdentityRow(
    "mug-001", "mug", "a squat enamel mug", "pressed steel, enamelled", ("blue", "white"),
    {"body": "ceramic", "handle": "metal"},
)  # fmt: skip


@pytest.fixture(scope="module")
def templates() -> prompts.Templates:
    return prompts.read(WORDS)


def test_pristine_prompt(templates):
    text = prompts.pristine_prompt(templates, MUG, KIND)
    for said in (
        "mug", MUG.style, MUG.manufacturing, "blue, white", "- body: ceramic", "- handle: metal",
        "70 percent", "pure white", "watermark", "no hands", "DIFFERENT", "orientation",
    ):  # fmt: skip
        assert said in text, said


@pytest.mark.parametrize("level", WORDS.severity, ids=lambda level: level.name)
def test_stage_prompt(templates, level):
    text = prompts.stage_prompt(templates, MUG, KIND, level, WORDS.failure_steps)
    low, high = level.ranges["deformation"]
    for said in (
        f"stage {level.name}", level.description, KIND.failure, MUG.style, "SAME", prompts.PREVIOUS,
        f"deformation {low:.0%} to {high:.0%}", "paper and cardboard -> thin fabric and foam",
        "handle (metal): The most durable", "body (ceramic): Glazes craze", "adds up",
        "Invent no part", "different rates", "no sparks", "footprint", "never one dark veil",
        "CLEARLY and DRAMATICALLY",
    ):  # fmt: skip
        assert said in text, said
    for rule in templates.rules.values():  # all twelve go into every stage prompt
        assert rule["rule"] in text
    assert "{" not in text and "}" not in text


def test_scene_prompts_vary_and_hold_their_controls(templates):
    briefs = [prompts.scene_brief(templates, WORDS, k, seed=3) for k in range(150)]
    pairs = {(brief.scene_type.name, brief.level) for brief in briefs}
    assert len(pairs) == 150 == len(WORDS.scene_types) * 5
    for control, values in templates.controls.items():
        assert {brief.controls[control] for brief in briefs} == set(values)
    for brief in briefs:
        assert all(value in brief.prompt for value in brief.controls.values())
        assert templates.scene_specific[brief.scene_type.environment] in brief.prompt
        assert all(WORDS.types[item].title in brief.prompt for item in brief.inventory)
        assert set(brief.inventory) <= set(brief.scene_type.objects)
    text = briefs[0].prompt
    for said in (
        "TARGET SCENE CONTROL", "PHYSICAL AND MATERIAL ACCURACY", "SPATIAL DAMAGE CONSISTENCY",
        "SECONDARY EFFECTS", "OBJECT DISTRIBUTION", "STRUCTURAL DETAILS", "CAMERA STYLE",
        "STRICT CONSTRAINTS", "24-35 mm", "V-patterns", "extinguisher", "Do NOT copy", "No flames",
    ):  # fmt: skip
        assert said in text, said


def test_judge_prompt(templates):
    text = templates.fill("judge", threshold="0.7")
    assert '{"grounding_score": <number from 0 to 1>, "reasoning": "<short>", "pass":' in text
    assert ">= 0.7" in text and all(f"({k})" in text for k in (1, 2, 3, 4)) and "new" in text


def test_own_templates_replace_ours(tmp_path, templates):
    (tmp_path / "judge.txt").write_text('Say {{"grounding_score": 0}} if below {threshold}.')
    own = prompts.read(WORDS, tmp_path)
    assert own.fill("judge", threshold="0.5") == 'Say {"grounding_score": 0} if below 0.5.'
    assert own.texts["scene"] == templates.texts["scene"] and own.hash != templates.hash


def test_faults_of_own_templates_are_named_at_once(tmp_path):
    shutil.copytree(prompts.SHIPPED, tmp_path, dirs_exist_ok=True)
    (tmp_path / "judge.txt").write_text("Score it; {treshold}")
    (tmp_path / "pristine.txt").write_text("{obj.__class__} {variant_style!r} {part_materials:>9}")
    (tmp_path / "scene.txt").write_text("A {scene_type")
    (tmp_path / "stages.txt").write_text("x")
    (tmp_path / "consistency.txt").write_text("{obj}")
    (tmp_path / "material_rules.toml").write_text('[paper]\ntitle = "x"\n[tin]\ntitle = "y"\n')
    (tmp_path / "scene_controls.toml").write_text("lighting = []\nmood = 1\n")
    with pytest.raises(FaultsError) as caught:
        prompts.read(WORDS, tmp_path)
    text = "\n".join(caught.value.faults)
    for said in (
        "judge.txt: unknown field {treshold}", "judge.txt: field {threshold} is missing",
        "unknown field {obj.__class__}", "{variant_style} must stand without a format",
        "{part_materials} must stand without", "pristine.txt: field {variant_colorway} is missing",
        "scene.txt: braces do not match", "stages.txt: no such template",
        "consistency.txt: unknown field {obj}; known: none", "unknown material 'tin'",
        "[metal] must hold", "unknown entry 'mood'", "'lighting' must be a list",
        "[scene_specific] must hold",
    ):  # fmt: skip
        assert said in text, said
    with pytest.raises(UserError, match="no such folder"):
        prompts.read(WORDS, tmp_path / "none")


def test_references_are_checked_and_sent_without_metadata(tmp_path):
    from PIL import Image

    exif = Image.Exif()
    exif[0x010E] = "taken at 12 Elm Street"
    Image.new("RGB", (3000, 1000), "grey").save(tmp_path / "a.jpg", exif=exif)
    (tmp_path / "copy.jpg").write_bytes((tmp_path / "a.jpg").read_bytes())
    Image.new("RGBA", (90, 90), (9, 9, 9, 60)).save(tmp_path / "b.png")
    (tmp_path / "notes.txt").write_text("no picture")
    pool = references.scan(tmp_path, WORDS.environments, 2)
    assert len(pool) == 2  # the copy is the same photograph
    sent = {ref.path.name: references.load(ref, "x") for ref in pool}
    assert b"Elm Street" not in sent["a.jpg"].data and sent["a.jpg"].media_type == "image/jpeg"
    with pytest.raises(UserError, match="holds 2 different"):
        references.scan(tmp_path, WORDS.environments, 3)
    (tmp_path / "b.png").write_bytes(b"changed")
    with pytest.raises(UserError, match="changed while"):
        references.load(next(r for r in pool if r.path.name == "b.png"), "x")
    (tmp_path / "c.webp").write_bytes(b"")
    with pytest.raises(FaultsError) as caught:
        references.scan(tmp_path, WORDS.environments, 1)
    assert len(caught.value.faults) == 2


def test_references_come_from_the_scenes_own_environment():
    pool = [
        references.Reference(Path(f"{group}{k}"), f"{group}{k}", group)
        for group in ("residential", "outdoor", "")
        for k in range(3)
    ]
    own = references.sample(pool, "outdoor", 2, 3, 0, "scene")
    assert {r.environment for r in own} == {"outdoor"} and 2 <= len(own) <= 3
    # Too few of the own group: all may serve.
    assert len(set(references.sample(pool, "outdoor", 5, 5, 0, "scene"))) == 5
    counts = {len(references.sample(pool, "", 2, 4, 0, f"s{k}")) for k in range(40)}
    assert counts == {2, 3} or counts == {2, 3, 4}


def _command(*arguments: str, key: str = KEY) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
    return subprocess.run(
        [sys.executable, str(ROOT / "bin" / "generate"), *arguments],
        env=environment | ({"GOOGLE_API_KEY": key} if key else {}),
        capture_output=True,
        text=True,
        cwd="/",
    )


def test_interrupted_command_keeps_what_came(tmp_path):
    """Ctrl-C: what is under way ends and is kept; the next run does not ask for it again."""
    pytest.importorskip("google.genai")
    arguments = (
        "--engine=gemini", "--kind=scenes", "--scenes=3", "--nojudge", "--nogrounding",
        "--concurrency=1", f"--out={tmp_path / 'out'}",
    )  # fmt: skip
    with stand_in.serving() as service:
        asked = threading.Event()

        def slow(number, request):
            asked.set()
            return Slow(1.0, stand_in.default(number, request))

        service.answer = slow
        environment = os.environ | {"GEMINI_API_KEY": KEY}
        running = subprocess.Popen(
            [sys.executable, str(ROOT / "bin" / "generate"), *arguments,
             f"--base_url={service.address}"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert asked.wait(30)
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=30)
        assert running.returncode == 130 and "run the same command again" in said
        assert "Traceback" not in said and KEY not in said
        assert len(service.asked) == 1 and not (tmp_path / "out" / "manifest.jsonl").exists()
        service.answer = stand_in.default
        done = _command(*arguments, f"--base_url={service.address}")
        assert done.returncode == 0, done.stderr
        assert len(service.asked) == 3 == len({a.print for a in service.asked})


def test_rehearsal_sends_nothing_and_costs_nothing(tmp_path):
    """The pipeline offline: each stage of the trajectory is the procedural world's."""
    out = tmp_path / "out"
    done = _command("--engine=gemini", "--rehearse", "--identities=1", f"--out={out}", key="")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 finished; 6 requests, at most 0.00 USD" in done.stdout
    assert manifest.check(out) == []
    data = manifest.read(out)
    assert data.info.provenance["engine"] == data.info.provenance["image_model"] == "procedural"
    assert len({example.sha256 for example in data.examples}) == 6


def test_rehearsal_of_scenes(tmp_path):
    settings = Settings(kind="scenes", name="s", scenes=2, judge=False, grounding=False)
    result = pipeline.run(settings, tmp_path, engine="procedural")
    assert result.complete and result.cost == 0
    assert result.dataset is not None
    rows = result.dataset.rows
    assert [row.severity for row in rows] == ["L0", "L1"] and rows[0].sha256 != rows[1].sha256
    with pytest.raises(UserError, match="cannot judge"):
        pipeline.run(
            dataclasses.replace(settings, judge=True, references=str(tmp_path)),
            tmp_path,
            engine="procedural",
        )


def test_command(tmp_path):
    """bin/generate --engine=gemini from end to end, refused, stopped and going on."""
    pytest.importorskip("google.genai")
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for k in range(4):
        (photographs / f"{k}.png").write_bytes(picture(k))
    out = tmp_path / "out"
    with stand_in.serving() as service:
        service.answer = lambda n, asked: (
            POOR if asked.judged and n == 0 else stand_in.default(n, asked)
        )
        common = (
            "--engine=gemini", "--kind=scenes", "--scenes=2", f"--references={photographs}",
            f"--base_url={service.address}", "--concurrency=1",
        )  # fmt: skip
        refused = _command(*common, f"--out={out}", key="")
        assert refused.returncode == 2 and "GEMINI_API_KEY" in refused.stderr
        dry = _command(*common, "--dry_run", "--show=1", key="")
        assert dry.returncode == 0 and "... and 1 more" in dry.stdout and not service.asked
        stopped = _command(*common, f"--out={out}", "--max_requests=3")
        assert (
            stopped.returncode == 1 and "the budget is reached: 3 of 3 requests" in stopped.stdout
        )
        done = _command(*common, f"--out={out}")
        assert done.returncode == 0, done.stderr
        assert "accepted 2 of 3 candidates: 66.7% (the paper: 73.8%)" in done.stdout
        assert len(service.asked) == 6
    text = (out / "dataset.json").read_text()
    assert '"command": "bin/generate --engine=gemini --kind=scenes --scenes=2"' in text
    for said in (refused, dry, stopped, done):
        assert KEY not in said.stdout + said.stderr and str(tmp_path) not in text
    for path in out.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
