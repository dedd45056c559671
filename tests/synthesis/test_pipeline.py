"""The generation pipeline against a local stand-in of the service; nothing leaves the machine."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthesis import stand_in
from synthesis.stand_in import GOOD, KEY, POOR, Cut, Raw, Slow, Status, inline, picture

from trace_jax import files, taxonomy
from trace_jax.data import manifest
from trace_jax.errors import FaultsError, UserError
from trace_jax.runs import pipeline
from trace_jax.runs.pipeline_plan import Plan
from trace_jax.synthesis.engines import gemini
from trace_jax.synthesis.engines import make as make_engine
from trace_jax.synthesis.settings import Settings
from trace_jax.types import LEVELS

pytest.importorskip("google.genai")

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("pristine", *LEVELS)


@pytest.fixture(autouse=True)
def words(monkeypatch) -> taxonomy.Taxonomy:
    """The shipped taxonomy with a few identities of our own, whatever it has itself."""
    shipped = taxonomy.load()
    rows = tuple(
        taxonomy.IdentityRow(
            f"{name}-00{k}", name, f"style {k} of a {name}", "pressed and welded", ("red", "white"),
            {part: made_of[0] for part, made_of in shipped.types[name].parts.items()},
        )
        for name in ("mug", "aerosol_can")
        for k in range(2)
    )  # fmt: skip
    small = dataclasses.replace(shipped, identities=rows)
    monkeypatch.setattr(taxonomy, "load", lambda: small)
    return small


@pytest.fixture
def service(monkeypatch) -> Iterator[stand_in.Service]:
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with stand_in.serving() as running:
        yield running


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    for group in ("residential", "commercial", "institutional", "outdoor"):
        (folder / group).mkdir(parents=True)
        for k in range(2):
            name = folder / group / f"{k}.jpg"
            name.write_bytes(picture(f"{group}{k}", (160, 120), "JPEG"))
    return folder


def objects(service: stand_in.Service, **changes) -> Settings:
    base = Settings(
        kind="objects", name="made", identities=2, base_url=service.address, backoff=0.001,
        backoff_max=0.002, timeout=10.0, attempts=3, concurrency=2,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def scenes(service: stand_in.Service, photographs: Path, **changes) -> Settings:
    base = objects(service, kind="scenes", identities=0, scenes=3, references=str(photographs))
    return dataclasses.replace(base, **changes)


def events(out: Path) -> list[dict]:
    text = (out / ".generation" / "journal.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


# --- what is asked, and what comes of it ---


def test_objects_go_from_pristine_to_l4_each_on_the_last(service, tmp_path, words):
    result = pipeline.run(objects(service), tmp_path / "out")
    assert result.complete and not result.skipped and result.requests == 12
    data = manifest.read(tmp_path / "out")
    assert data.info.provenance["complete"] and data.info.provenance["engine"] == "gemini"
    assert manifest.check(tmp_path / "out") == []
    by_identity = {row.identity for row in data.examples}
    assert by_identity == {"mug-000", "aerosol_can-000"}
    asked = {a.prompt: a for a in service.asked}
    plan = Plan.make(objects(service), words)
    for name in by_identity:
        rows = [row for row in data.examples if row.identity == name]
        assert tuple(row.severity for row in rows) == STAGES
        previous = None
        for row in rows:
            request = asked[plan.objects[name].prompts[row.severity]]
            assert request.pictures == ([] if previous is None else [previous])
            assert request.config["imageConfig"] == {"aspectRatio": "1:1", "imageSize": "1K"}
            assert request.model == "gemini-3-pro-image-preview"
            previous = data.path(row).read_bytes()
            assert row.sha256 == files.sha256_file(data.path(row))
        assert rows[4].description.startswith("severe degradation")
        assert rows[0].failure_notes == words.types[rows[0].object_type].failure
    assert all(a.headers["x-goog-api-key"] == KEY for a in service.asked)


def test_scenes_are_judged_against_their_references(service, photographs, tmp_path, words):
    def answer(number, asked):
        if asked.judged:
            return POOR if number == 0 else GOOD
        return picture(asked.config["seed"], (128, 96), "WEBP")

    service.answer = answer
    out = tmp_path / "out"
    result = pipeline.run(scenes(service, photographs, concurrency=1), out)
    assert (result.candidates, result.accepted, result.unusable) == (4, 3, 0)
    assert "accepted 3 of 4 candidates: 75.0% (the paper: 73.8%)" in result.summary()
    lines = (out / "manifest.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    pool = {files.sha256_file(p) for p in photographs.rglob("*.jpg")}
    for row in rows:
        made = row["generation"]
        assert row["boxes"] == [] and (row["width"], row["height"]) == (128, 96)
        assert made["grounding_score"] == 0.9 and made["reasoning"] == "believable"
        assert 2 <= len(made["references"]) <= 4 and set(made["references"]) <= pool
        assert len(set(made["references"])) == len(made["references"])
        assert set(made["intended_inventory"]["objects"]) <= set(words.object_types)
        assert made["controls"]["damage_level"].startswith(row["severity"])
        assert row["environment"] == words.scene_type_of[row["scene_type"]].environment
    for drawn, judged in zip(service.of(False), service.of(True), strict=True):
        assert drawn.labels == [f"Reference {k}:" for k in range(1, len(drawn.labels) + 1)]
        assert judged.labels == ["Candidate:", *drawn.labels]
        assert judged.pictures[1:] == drawn.pictures
        assert judged.model == "gemini-3-flash-preview"
        assert drawn.config["imageConfig"]["aspectRatio"] == "4:3"
    # The rejected candidate was drawn again with the same words but another seed.
    first, second = service.of(False)[:2]
    assert first.prompt == second.prompt and first.config["seed"] != second.config["seed"]


@pytest.mark.parametrize("grounding", [True, False])
@pytest.mark.parametrize("judge", [True, False])
def test_ablation_switches(service, photographs, tmp_path, grounding, judge):
    settings = scenes(service, photographs, scenes=2, grounding=grounding, judge=judge)
    if not grounding and not judge:
        settings = dataclasses.replace(settings, references="")
    result = pipeline.run(settings, tmp_path / "out")
    assert result.complete
    assert all(bool(a.pictures) == grounding for a in service.of(False))
    assert len(service.of(True)) == (2 if judge else 0)
    assert all(len(a.pictures) >= 3 for a in service.of(True))
    assert ("accepted" in result.summary()) == judge
    for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines():
        assert ("grounding_score" in json.loads(line)["generation"]) == judge


def test_runs_repeat_each_other(service, photographs, tmp_path):
    for name in ("a", "b"):
        pipeline.run(scenes(service, photographs), tmp_path / name)
    a, b = ((tmp_path / n / "manifest.jsonl").read_bytes() for n in "ab")
    assert a == b
    assert len(service.asked) == 12 and len({q.print for q in service.asked}) == 6


def test_seed_draws_other_references_and_controls(service, photographs, words):
    one = Plan.make(scenes(service, photographs, scenes=12), words)
    other = Plan.make(scenes(service, photographs, scenes=12, seed=1), words)
    assert one.references != other.references
    assert [b.controls for b in one.scenes.values()] != [b.controls for b in other.scenes.values()]
    # A larger set begins with the smaller one.
    small = Plan.make(scenes(service, photographs, scenes=5), words)
    assert list(one.scenes.items())[:5] == list(small.scenes.items())


# --- a service that misbehaves ---

HTML = b"<!doctype html><html><body>Sign in</body></html>"
BAD_PICTURES = {
    "html": inline(HTML),
    "gif": inline(picture(1, format="GIF")),
    "nothing": inline(b""),
    "truncated png": inline(picture(1)[:-40]),
    "truncated jpeg": inline(picture(1, (640, 480), "JPEG")[:900], "image/jpeg"),
    "tiny": inline(picture(1, (8, 8))),
    "no picture": "Sorry, I cannot do that.",
    "no candidate": Raw(b'{"promptFeedback": {"blockReason": "SAFETY"}}'),
    "empty candidate": Raw(b'{"candidates": [{"finishReason": "IMAGE_SAFETY"}]}'),
    "malformed json": Raw(b'{"candidates": [{"content"'),
    "html body": Raw(HTML),
    "json of another form": Raw(b"[1, 2]"),
    "not base64": Raw(b'{"candidates":[{"content":{"parts":[{"inlineData":{"data":"!"}}]}}]}'),
    "429": Status(429),
    "429 in a moment": Status(429, {"Retry-After": "0"}),
    "500": Status(500),
    "503 html": Status(503, said=HTML.decode()),
    "cut": Cut(),
}


@pytest.mark.parametrize("bad", BAD_PICTURES.values(), ids=BAD_PICTURES)
def test_bad_picture_is_refused_and_asked_again(service, tmp_path, bad):
    service.answer = lambda n, asked: bad if n in (0, 3) else stand_in.default(n, asked)
    result = pipeline.run(objects(service, concurrency=1), tmp_path)
    assert result.complete and result.requests == 14
    assert manifest.check(tmp_path) == []


@pytest.mark.parametrize("kind", ["html", "no candidate", "malformed json", "429", "cut"])
def test_service_that_stays_bad_is_given_up(service, tmp_path, kind):
    bad = BAD_PICTURES[kind]

    def answer(number, asked):
        return bad if "mug" in asked.prompt else stand_in.default(number, asked)

    service.answer = answer
    result = pipeline.run(objects(service), tmp_path)
    assert set(result.skipped) == {"mug-000"} and not result.complete
    assert "3 tries" in result.skipped["mug-000"] and "skipped mug-000" in result.summary()
    assert {row.identity for row in manifest.read(tmp_path).examples} == {"aerosol_can-000"}
    assert manifest.read(tmp_path).info.provenance["complete"] is False
    # The next run tries only what was skipped.
    service.answer, service.asked = stand_in.default, []
    assert pipeline.run(objects(service), tmp_path).complete
    assert len(service.asked) == 6 and all("mug" in a.prompt for a in service.asked)


BAD_VERDICTS = {
    "nan": '{"grounding_score": NaN, "reasoning": "", "pass": true}',
    "infinite": '{"grounding_score": 1e999, "reasoning": "", "pass": true}',
    "above": '{"grounding_score": 7.5, "reasoning": "", "pass": true}',
    "below": '{"grounding_score": -0.1, "reasoning": "", "pass": false}',
    "text score": '{"grounding_score": "0.9", "reasoning": "", "pass": true}',
    "true score": '{"grounding_score": true, "reasoning": "", "pass": true}',
    "no score": '{"reasoning": "", "pass": true}',
    "one more": '{"grounding_score": 0.9, "reasoning": "", "pass": true, "x": 1}',
    "twice": '{"grounding_score": 0.1, "grounding_score": 0.9, "reasoning": "", "pass": true}',
    "contradiction": '{"grounding_score": 0.2, "reasoning": "", "pass": true}',
    "text pass": '{"grounding_score": 0.9, "reasoning": "", "pass": "yes"}',
    "prose": 'Here you are: {"grounding_score": 0.9, "reasoning": "", "pass": true}',
    "list": "[0.9]",
    "cut": '{"grounding_score": 0.9, "reas',
    "picture": inline(picture(1)),
}


@pytest.mark.parametrize("bad", BAD_VERDICTS.values(), ids=BAD_VERDICTS)
def test_bad_verdict_is_asked_again_then_unusable_never_accepted(
    service, photographs, tmp_path, bad
):
    settings = scenes(service, photographs, scenes=1, candidates=2)
    service.answer = lambda n, asked: bad if asked.judged and n == 0 else stand_in.default(n, asked)
    result = pipeline.run(settings, tmp_path / "once")
    assert (result.candidates, result.accepted) == (1, 1) and len(service.of(True)) == 2

    service.asked.clear()
    service.answer = lambda n, asked: bad if asked.judged else stand_in.default(n, asked)
    result = pipeline.run(settings, tmp_path / "always")
    assert (result.candidates, result.accepted, result.unusable) == (2, 0, 2)
    assert result.dataset is None and "none of 2 candidates" in result.skipped["scene-000000"]
    assert len(service.of(True)) == 2 * 3
    # Recorded: another run asks nothing again.
    service.asked.clear()
    assert not pipeline.run(settings, tmp_path / "always").complete
    assert service.asked == []


@pytest.mark.parametrize(("score", "accepted"), [(0.7, True), (0.69, False), (1, True), (0, False)])
def test_threshold(service, photographs, tmp_path, score, accepted):
    verdict = {"grounding_score": score, "reasoning": "", "pass": accepted}
    service.answer = lambda n, asked: verdict if asked.judged else stand_in.default(n, asked)
    settings = scenes(service, photographs, scenes=1, candidates=1)
    assert pipeline.run(settings, tmp_path).complete == accepted


def test_slow_answers_time_out_and_are_asked_again(service, tmp_path):
    slow = Slow(2.0, picture(1))
    service.answer = lambda n, asked: slow if n == 0 else stand_in.default(n, asked)
    result = pipeline.run(objects(service, identities=1, timeout=1.0), tmp_path)
    assert result.complete and result.requests == 7


def test_retry_after_is_honoured(service, tmp_path, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(
        threading.Event, "wait",
        lambda self, timeout=None, real=threading.Event.wait: (
            waits.append(timeout) or real(self, 0.0)
            if timeout and timeout > 1 else real(self, timeout)
        ),
    )  # fmt: skip
    retry_info = {"details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "37s"}]}
    told = [
        Status(429, {"Retry-After": "21"}),
        Raw(b""),
        Status(429),
    ]
    service.answer = lambda n, asked: told[n] if n < 2 else stand_in.default(n, asked)
    assert pipeline.run(objects(service, identities=1), tmp_path / "a").complete
    assert waits == [21.0]
    assert gemini.parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert gemini.parse_retry_after("soon") is None
    error = type("E", (), {"response": None, "details": {"error": retry_info}})()
    assert gemini._wait(error) == 37.0
    # A service that closes for an hour is not waited for.
    service.answer = lambda n, asked: Status(429, {"Retry-After": "3600"})
    waits.clear()
    result = pipeline.run(objects(service, identities=1), tmp_path / "b")
    assert result.skipped and not waits


def test_waits_grow_and_have_jitter():
    patience = pipeline.Patience(9, 1.0, 8.0)
    for failures, most in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (8, 8.0)):
        seen = {patience.wait(failures, None) for _ in range(20)}
        assert len(seen) > 1 and most / 2 <= min(seen) <= max(seen) <= most
    assert patience.wait(1, 30.0) == 30.0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Status(403, said=f"bad key {KEY}"), "refused the key"),
        (Status(401), "refused the key"),
        (Status(400, said="API key not valid"), "refused the key"),
        (Status(404), "does not know the model"),
    ],
)
def test_refusals_end_the_run_at_once(service, tmp_path, answer, message):
    service.answer = lambda n, asked: answer
    with pytest.raises(UserError, match=message) as caught:
        pipeline.run(objects(service, concurrency=1), tmp_path)
    assert KEY not in str(caught.value) and len(service.asked) <= 2


def test_bad_request_is_not_asked_again(service, tmp_path):
    service.answer = lambda n, asked: Status(400, said="image too odd")
    result = pipeline.run(objects(service), tmp_path)
    assert len(service.asked) == 2 and "image too odd" in result.skipped["mug-000"]


def test_concurrency_is_bounded(service, photographs, tmp_path):
    service.answer = lambda n, asked: Slow(0.03, stand_in.default(n, asked))
    pipeline.run(scenes(service, photographs, scenes=8, concurrency=3), tmp_path / "out")
    assert service.most_busy == 3


def test_run_ends_where_the_service_is_down(service, tmp_path):
    service.answer = lambda n, asked: Status(429) if n >= 2 else stand_in.default(n, asked)
    settings = objects(
        service, kind="scenes", scenes=40, identities=0, judge=False, grounding=False, attempts=2
    )
    result = pipeline.run(settings, tmp_path)
    assert "failed 10 times in a row" in result.summary() and result.finished == 2
    assert len(service.asked) <= 2 + 2 * (10 + settings.concurrency)
    service.answer = stand_in.default
    assert pipeline.run(settings, tmp_path).complete


# --- budget, kill, resume ---


@pytest.mark.parametrize(
    "limit", [{"max_requests": 7}, {"budget": "1.75"}, {"budget": "1.99"}], ids=str
)
def test_budget_stops_and_goes_on(service, tmp_path, limit):
    result = pipeline.run(objects(service, **limit), tmp_path)
    assert result.stopped and not result.complete and len(service.asked) == 7
    assert result.requests == 7 and str(result.cost) == "1.75"
    assert "to go on" in result.summary() and "--max_requests" in result.summary()
    # The same command sends nothing more.
    again = pipeline.run(objects(service, **limit), tmp_path)
    assert again.stopped and len(service.asked) == 7 and again.finished == result.finished
    done = pipeline.run(objects(service), tmp_path)
    assert done.complete and done.requests == 12
    assert len({a.print for a in service.asked}) == len(service.asked) == 12
    assert manifest.check(tmp_path) == []


def test_budget_keeps_what_is_finished(service, tmp_path):
    settings = objects(service, concurrency=1)
    first = pipeline.run(dataclasses.replace(settings, max_requests=9), tmp_path)
    assert first.finished == 1 and {e.identity for e in first.dataset.examples} == {"mug-000"}
    assert manifest.check(tmp_path) == []


def test_errors_of_the_service_cost_requests_but_no_money(service, tmp_path):
    service.answer = lambda n, asked: Status(503) if n < 2 else stand_in.default(n, asked)
    result = pipeline.run(objects(service, identities=1), tmp_path)
    assert result.requests == 8 and str(result.cost) == "1.50"
    # What was answered, if only with rubbish, may be billed.
    service.counts.clear()
    service.answer = lambda n, asked: inline(HTML) if n < 2 else stand_in.default(n, asked)
    result = pipeline.run(objects(service, identities=1), tmp_path / "b")
    assert result.requests == 8 and str(result.cost) == "2.00"


KILLED = """
import os, signal, sys
from trace_jax.runs import pipeline, pipeline_store
from trace_jax.synthesis.settings import Settings
after, count = int(sys.argv[2]), 0
append = pipeline_store.Store._append
def dying(self, row, lasting=False):
    global count
    if row["event"] != "sent":
        count += 1
        if count > after:
            self._stream.write(b'{"event": "pict'); self._stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    append(self, row, lasting)
pipeline_store.Store._append = dying
pipeline.run(Settings(kind="scenes", name="made", scenes=3, references=sys.argv[3],
    base_url=sys.argv[4], concurrency=1), sys.argv[1])
"""


@pytest.mark.parametrize("after", [0, 3])
def test_killed_run_goes_on_without_asking_twice(service, photographs, tmp_path, after):
    out, unbroken = tmp_path / "out", tmp_path / "unbroken"
    arguments = [str(out), str(after), str(photographs), service.address]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT)
    assert killed.returncode == -9 and not (out / "manifest.jsonl").exists()
    assert len(service.asked) == after + 1
    settings = scenes(service, photographs, concurrency=1)
    assert pipeline.run(settings, out).complete
    # Only the answer that the kill kept from being recorded is asked for again.
    assert len(service.asked) == 7 and len({a.print for a in service.asked}) == 6
    pipeline.run(settings, unbroken)
    for name in ("manifest.jsonl", "dataset.json"):
        assert (out / name).read_bytes() == (unbroken / name).read_bytes()


def test_finished_folder_asks_nothing(service, photographs, tmp_path):
    settings = scenes(service, photographs)
    pipeline.run(settings, tmp_path / "out")
    before = (tmp_path / "out" / "manifest.jsonl").read_bytes()
    service.asked.clear()
    result = pipeline.run(settings, tmp_path / "out")
    assert service.asked == [] and result.complete and result.candidates == 3
    assert (tmp_path / "out" / "manifest.jsonl").read_bytes() == before


def test_damaged_picture_is_asked_again(service, tmp_path):
    pipeline.run(objects(service, identities=1), tmp_path)
    kept = sorted((tmp_path / ".generation" / "pictures").iterdir())
    kept[0].write_bytes(b"rotten")
    service.asked.clear()
    assert pipeline.run(objects(service, identities=1), tmp_path).complete
    assert len(service.asked) == 1 and manifest.check(tmp_path) == []


def test_two_runs_of_one_folder_are_refused(service, tmp_path):
    inside = threading.Event()
    failed: list[str] = []

    def answer(number, asked):
        if number == 0:
            with pytest.raises(UserError, match="another run"):
                pipeline.run(objects(service), tmp_path)
            failed.append("refused")
            inside.set()
        return stand_in.default(number, asked)

    service.answer = answer
    pipeline.run(objects(service), tmp_path)
    assert inside.is_set() and failed == ["refused"] and len(service.asked) == 12


def test_other_folders_are_left_alone(service, photographs, tmp_path):
    mine = tmp_path / "mine" / "images"
    mine.mkdir(parents=True)
    (mine / "holiday.jpg").write_bytes(picture(3, format="JPEG"))
    with pytest.raises(UserError, match="another origin"):
        pipeline.run(objects(service), tmp_path / "mine")
    pipeline.run(objects(service, identities=1), tmp_path / "made")
    with pytest.raises(UserError, match="another data set"):
        pipeline.run(scenes(service, photographs, scenes=1), tmp_path / "made")
    assert (mine / "holiday.jpg").exists() and len(service.asked) == 6


# --- the key ---


def test_key_is_nowhere(service, photographs, tmp_path, caplog, capfd):
    """Even where the service repeats it in every answer and fails."""
    told = [
        Status(500, said=f"key {KEY}"),
        Raw(KEY.encode()),
        inline(KEY.encode()),
        Status(429, {"Retry-After": "0"}, said=KEY),
    ]

    def answer(number, asked):
        if asked.judged:
            return {"grounding_score": 0.9, "reasoning": f"your key is {KEY}", "pass": True}
        return told[number] if number < len(told) else stand_in.default(number, asked)

    service.answer = answer
    caplog.set_level(logging.DEBUG)
    out = tmp_path / "out"
    settings = scenes(service, photographs, attempts=9)
    result = pipeline.run(settings, out, command=f"bin/generate --name={KEY}")
    assert result.complete
    service.answer = lambda n, asked: (
        "no" + KEY if asked.judged else Status(400, said=f"{KEY} is odd")
    )
    lost = pipeline.run(dataclasses.replace(settings, seed=5), tmp_path / "lost")
    assert len(lost.skipped) == 3
    service.answer = lambda n, asked: KEY if asked.judged else stand_in.default(n, asked)
    pipeline.run(dataclasses.replace(settings, seed=6, attempts=1), tmp_path / "unusable")
    captured = capfd.readouterr()
    told_to_user = [
        captured.out, captured.err, caplog.text, result.summary(), lost.summary(), repr(result),
        repr(make_engine("gemini", settings)), str(vars(settings)),
    ]  # fmt: skip
    for text in told_to_user:
        assert KEY not in text
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(written) > 20
    for path in written:
        assert KEY.encode() not in path.read_bytes(), path
        assert KEY not in str(path)
    assert "***" in (out / "manifest.jsonl").read_text()


def test_key_is_needed_and_read_from_the_environment_only(service, tmp_path, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY")
    with pytest.raises(UserError, match="GEMINI_API_KEY or GOOGLE_API_KEY"):
        pipeline.run(objects(service), tmp_path)
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    assert gemini.key() == KEY
    for address in ("ftp://x", "127.0.0.1", "https://u:p@x", f"https://x/?key={KEY}", "http://["):
        with pytest.raises(UserError, match="--base_url") as caught:
            pipeline.run(objects(service, base_url=address), tmp_path)
        assert KEY not in str(caught.value)
    assert not any(f.metadata for f in dataclasses.fields(Settings) if "key" in f.name)


def test_missing_package_is_named(service, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.genai", None)
    with pytest.raises(UserError, match="google-genai"):
        pipeline.run(objects(service), tmp_path)


# --- settings ---


def test_settings_are_refused_all_at_once(service):
    bad = objects(
        service, identities=0, concurrency=0, threshold=float("nan"), references_min=5,
        image_size="3K",
    )  # fmt: skip
    with pytest.raises(FaultsError) as caught:
        bad.check()
    assert len(caught.value.faults) == 5
    with pytest.raises(FaultsError, match="--nogrounding"):
        objects(service, kind="scenes", scenes=1).check()
    with pytest.raises(UserError, match="taxonomy has 4"):
        pipeline.run(objects(service, identities=5), "unused")


def test_budget_needs_prices(service, tmp_path):
    with pytest.raises(FaultsError, match="no price for other-model"):
        pipeline.run(objects(service, budget="5", image_model="other-model"), tmp_path)
    with pytest.raises(FaultsError, match="no number"):
        pipeline.run(objects(service, budget="five"), tmp_path)
    table = tmp_path / "prices.toml"
    table.write_text('currency = "EUR"\n[request]\n"other-model" = 0.1\n')
    settings = objects(
        service, budget="0.3", image_model="other-model", prices=str(table), identities=1
    )
    result = pipeline.run(settings, tmp_path / "out")
    assert (result.requests, str(result.cost), result.currency) == (3, "0.3", "EUR")
    table.write_text("currency = 1\n[request]\na = -1\nb = nan\nc = true\n[x]\n")
    with pytest.raises(FaultsError) as caught:
        pipeline.run(settings, tmp_path / "out")
    assert len(caught.value.faults) == 5


def test_dry_run_needs_no_key_and_sends_nothing(service, photographs, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY")
    lines: list[str] = []
    pipeline.describe(objects(service), lines.append)
    text = "\n".join(lines)
    assert text.count("--- mug-000:") == 6 and "in all at most about 3.00 USD" in text
    lines.clear()
    pipeline.describe(scenes(service, photographs, scenes=10), lines.append, show=1)
    text = "\n".join(lines)
    assert "TARGET SCENE CONTROL" in text and "strict JSON" in text and "9 more" in text
    assert "gemini-3-flash-preview: about 14 requests" in text
    assert service.asked == []
