"""Loading and saving hosts: strict both ways, every fault reported at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from support import encoders

import converters
from converters import audit, rules, tensors
from trace_jax import hosts
from trace_jax.errors import FaultsError, UserError

ROOT = Path(__file__).resolve().parent.parent


def _read_all(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = tensors.Checkpoint.open(folder)
    assert not checkpoint.faults
    return {name: checkpoint.read(name) for name in checkpoint.tensors}


def _write(path: Path, values: dict[str, np.ndarray]) -> None:
    shapes = {k: (tensors.dtype_name(v.dtype), v.shape) for k, v in values.items()}
    tensors.write(path, shapes, iter(values.items()))


def _shard(folder: Path, count: int = 3) -> None:
    """Rewrites model.safetensors as shards with an index."""
    values = _read_all(folder)
    (folder / tensors.SINGLE).unlink()
    weight_map = {}
    for part in range(count):
        name = f"model-{part + 1:05d}-of-{count:05d}.safetensors"
        keys = sorted(values)[part::count]
        _write(folder / name, {k: values[k] for k in keys})
        weight_map.update(dict.fromkeys(keys, name))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / tensors.INDEX).write_text(json.dumps(index))


def _same(a, b) -> bool:
    equal = jax.tree.map(lambda x, y: x.dtype == y.dtype and bool((x == y).all()), a, b)
    return all(jax.tree.leaves(equal))


@pytest.fixture
def folder(tmp_path) -> Path:
    encoders.folder("siglip2", tmp_path / "weights")
    return tmp_path / "weights"


def _faults(folder: Path, name: str = "siglip2") -> str:
    with pytest.raises(FaultsError) as caught:
        converters.load_host(name, folder)
    return str(caught.value)


# ---- there and back


@pytest.mark.parametrize("dtype", converters.load.DTYPES)
@pytest.mark.parametrize("name", encoders.NAMES)
def test_saved_hosts_load_back_bit_equal(name, dtype, tmp_path):
    host = encoders.build(name, dtype=dtype)
    digest = converters.save_host(host, tmp_path)
    again, report = converters.load_host_with_report(name, tmp_path, dtype=dtype)
    assert _same(dict(host.params), dict(again.params))
    assert again.spec.weights_hash == report.weights_hash == digest
    assert again.spec.num_params == report.num_params == host.spec.num_params
    assert again.spec.dtype == dtype
    assert again.spec.preprocessing == host.spec.preprocessing
    assert report.preprocessor == "preprocessor_config.json"


def test_sharded_and_single_files_are_the_same_weights(folder):
    single = converters.load_host("siglip2", folder)
    _shard(folder)
    sharded = converters.load_host("siglip2", str(folder))
    with pytest.raises(UserError, match="holds sharded weights"):
        converters.save_host(sharded, folder)
    assert sharded.spec.weights_hash == single.spec.weights_hash
    assert _same(dict(single.params), dict(sharded.params))


def test_the_hash_depends_on_names_dtypes_shapes_and_bytes(tmp_path):
    base = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(2, np.float32)}
    others = [
        {**base, "a": base["a"] + 1},
        {**base, "a": base["a"].reshape(2, 3)},
        {**base, "a": base["a"].view(np.int32)},
        {"c": base["a"], "b": base["b"]},
    ]
    seen = set()
    for number, values in enumerate([base, dict(reversed(base.items())), *others]):
        (tmp_path / str(number)).mkdir()
        _write(tmp_path / str(number) / tensors.SINGLE, values)
        seen.add(tensors.Checkpoint.open(tmp_path / str(number)).weights_hash(values))
    assert len(seen) == 5  # order alone changes nothing


def test_weights_are_cast_to_the_dtype_asked_for(folder):
    wide = converters.load_host("siglip2", folder)
    narrow = converters.load_host("siglip2", folder, dtype="bfloat16")
    assert narrow.spec.weights_hash == wide.spec.weights_hash
    cast = jax.tree.map(lambda x: np.asarray(x).astype(ml_dtypes.bfloat16), dict(wide.params))
    assert _same(cast, jax.tree.map(np.asarray, dict(narrow.params)))


def test_position_ids_of_old_files_are_ignored_and_reported(folder):
    digest = converters.load_host("siglip2", folder).spec.weights_hash
    values = _read_all(folder)
    values["text_model.embeddings.position_ids"] = np.arange(16)[None]
    _write(folder / tensors.SINGLE, values)
    host, report = converters.load_host_with_report("siglip2", folder)
    assert list(report.ignored_tensors) == ["text_model.embeddings.position_ids"]
    assert host.spec.weights_hash == digest


# ---- faults


def test_every_mismatch_is_reported_in_one_list(folder):
    values = _read_all(folder)
    del values["vision_model.head.probe"]
    del values["text_model.encoder.layers.1.mlp.fc1.bias"]
    values["text_model.extra.weight"] = np.zeros((2, 2), np.float32)
    values["logit_scale"] = np.zeros((3,), np.float32)
    values["logit_bias"] = np.zeros((1,), np.int32)
    values["vision_model.head.attention.in_proj_weight"] = np.zeros((95, 32), np.float32)
    _write(folder / tensors.SINGLE, values)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] = {**config["vision_config"], "rope_theta": 3, "num_channels": 1}
    (folder / "config.json").write_text(json.dumps(config))
    message = _faults(folder)
    for part in (
        "vision_model.head.probe [1, 1, 32]: missing",
        "text_model.encoder.layers.1.mlp.fc1.bias [64]: missing",
        "text_model.extra.weight [2, 2]: unused",
        "logit_scale: shape [3], but logit_scale needs [1]",
        "logit_bias: dtype I32",
        "in_proj_weight: shape [95, 32]",
        "needs [96, 32]",
        "vision_config.rope_theta = 3 is a setting this host does not know",
        "vision_config.num_channels is 1, must be 3",
        "(8 found)",
    ):
        assert part in message, (part, message)


def test_a_truncated_file_is_named(folder):
    path = folder / tensors.SINGLE
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert f"{tensors.SINGLE}: is truncated: {len(data) // 2} of {len(data)} bytes" in _faults(
        folder
    )
    path.write_bytes(data[:100])
    assert "truncated inside its header (100 bytes)" in _faults(folder)
    path.write_bytes(b"")
    assert "is no safetensors file (0 bytes)" in _faults(folder)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "is no safetensors file" in _faults(folder)


def test_a_missing_shard_is_named(folder):
    _shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors: this shard is missing" in _faults(folder)


def test_an_index_that_lies_is_told(folder):
    _shard(folder)
    index = json.loads((folder / tensors.INDEX).read_text())
    index["weight_map"]["logit_bias"] = "model-00003-of-00003.safetensors"
    del index["weight_map"]["logit_scale"]
    (folder / tensors.INDEX).write_text(json.dumps(index))
    message = _faults(folder)
    assert "logit_bias: the index says model-00003-of-00003.safetensors" in message
    assert "logit_scale: in" in message and "not in the index" in message


def test_a_tensor_in_two_shards_is_told(folder):
    _shard(folder)
    values = tensors.Checkpoint.open(folder)
    extra = {"logit_bias": values.read("logit_bias"), "logit_scale": values.read("logit_scale")}
    _write(folder / "model-00003-of-00003.safetensors", extra)
    assert "stored twice" in _faults(folder)


def test_weights_of_another_model_are_refused(folder):
    with pytest.raises(UserError, match="model_type 'siglip', this host needs 'clip'"):
        converters.load_host("clip", folder)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"vision_config": {"num_attention_heads": 5}}, "no multiple"),
        ({"vision_config": {"hidden_act": "mish"}}, "hidden_act is 'mish'"),
        ({"vision_config": {"image_size": 30, "patch_size": 14}}, "no multiple of patch_size"),
        ({"vision_config": {"image_size": [28, 14]}}, "square"),
        ({"vision_config": "large"}, "not a section"),
        ({"text_config": {"num_hidden_layers": 0}}, "num_hidden_layers is 0"),
        ({"text_config": {"projection_size": 8}}, "text embeddings are 8"),
        ({"model_type": "siglip2"}, "NaFlex"),
    ],
)
def test_configs_of_no_model_are_refused(change, match, folder):
    config = json.loads((folder / "config.json").read_text())
    for key, value in change.items():
        merged = {**config[key], **value} if isinstance(value, dict) else value
        config[key] = merged
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=match):
        converters.load_host("siglip2", folder)


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_a_config_that_is_no_object_is_refused(content, folder):
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        converters.load_host("siglip2", folder)


def test_places_without_weights_say_what_to_do(tmp_path, folder):
    with pytest.raises(UserError, match="no such folder"):
        converters.load_host("clip", tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no config.json"):
        converters.load_host("clip", tmp_path)
    with pytest.raises(UserError, match="is a file"):
        converters.load_host("clip", folder / "config.json")
    with pytest.raises(UserError, match="there is no host 'clap'; known hosts are clip, siglip2"):
        converters.load_host("clap", folder)
    with pytest.raises(UserError, match="no tap 'pooler'"):
        converters.load_host("siglip2", folder, tap="pooler")
    with pytest.raises(UserError, match="dtype 'int8'"):
        converters.load_host("siglip2", folder, dtype="int8")
    (folder / tensors.SINGLE).rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin cannot be used"):
        converters.load_host("siglip2", folder)


@pytest.mark.parametrize("name", encoders.NAMES)
def test_without_network_the_error_says_what_to_do(name, tmp_path):
    code = (
        "import converters\n"
        "from trace_jax.errors import UserError\n"
        "try:\n"
        f"    converters.load_host({name!r})\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert hosts.lookup(name).family.hub_id in done.stdout
    assert "--weights=DIR" in done.stdout and "--host=siglip2_nano" in done.stdout


# ---- configs of any age


def test_settings_of_old_files_are_ignored_with_a_reason(tmp_path):
    encoders.folder("clip", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    old = {
        "_name_or_path": "openai/clip-vit-large-patch14",
        "add_cross_attention": False,
        "attention_dropout": 0.0,
        "chunk_size_feed_forward": 0,
        "id2label": {"0": "LABEL_0"},
        "is_decoder": False,
        "max_length": 20,
        "pruned_heads": {},
        "torch_dtype": "float32",
        "transformers_version": "4.16.0.dev0",
        "use_bfloat16": False,
    }
    config = {**config, **old}
    config["text_config_dict"] = {**config["text_config"], **old}
    config["vision_config"] = {**config["vision_config"], **old}
    config["vision_config_dict"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, report = converters.load_host_with_report("clip", tmp_path)
    assert report.ignored_settings["text_config_dict.max_length"]
    assert report.ignored_settings["vision_config.id2label"]
    config["vision_config"]["is_decoder"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "vision_config.is_decoder is True, must be False" in _faults(tmp_path, "clip")


def test_audit_sorts_keys_into_three_kinds():
    section = audit.Section({"width"}, {"colour": "taste"}, {"shape": "round"})
    ignored, faults = audit.check({"width": 3, "colour": 1, "shape": "round"}, {"": section})
    assert ignored == {"colour": "taste"} and not faults
    _, faults = audit.check({"shape": "square", "other": None}, {"": section})
    assert len(faults) == 2


# ---- rules


def test_plan_finds_double_claims_lost_parts_and_missing_rules():
    leaves = {"a": (2,), "b": (2,), "c": (2,), "d": (2,)}
    found = {
        "a": rules.Take("x"),
        "b": rules.Take("x"),
        "c": rules.Split("y", 0, 2),
        "e": rules.Take("z"),
    }
    _, _, faults = rules.plan(leaves, found, {"x": (2,), "y": (4,)}, {})
    text = "\n".join(faults)
    assert "x: claimed twice" in text
    assert "y: parts [1] of 2" in text
    assert "d: no rule" in text
    assert "e: a rule for a leaf the model does not have" in text


@pytest.mark.parametrize(
    ("rule", "leaf"),
    [
        (rules.Take("k"), (3, 4)),
        (rules.Take("k", rules.TRANSPOSE), (3, 4)),
        (rules.Take("k", rules.DROP_FIRST), (1, 4)),
        (rules.Take("k", rules.patch_kernel(2)), (12, 5)),
        (rules.Split("k", 1, 3, rules.TRANSPOSE), (3, 4)),
        (rules.Fuse(("k", "l"), 1, rules.TRANSPOSE), (3, 8)),
        (rules.Fuse(("k", "l"), -1), (6,)),
        (rules.Stack(rules.Take("k{}", rules.TRANSPOSE)), (2, 3, 4)),
        (rules.Stack(rules.Fuse(("k{}", "l{}"), 1)), (2, 3, 4)),
    ],
)
def test_a_leaf_is_its_pieces_put_together(rule, leaf):
    rng = np.random.default_rng(0)
    out = np.full(leaf, np.nan)
    for piece in rule.pieces(leaf):
        source = rng.normal(size=piece.source_shape(leaf))
        low, high = piece.rows(source.shape[0])
        part = source[low:high]
        out[piece.into] = piece.transform.forward(part)
        assert (piece.transform.inverse(out[piece.into]) == part).all()
    assert np.isfinite(out).all()


# ---- placement and memory


def test_a_mesh_places_every_parameter_by_the_rule(folder):
    code = (
        "import sys, jax, numpy as np, converters\n"
        "from jax.sharding import AxisType, PartitionSpec as P\n"
        "mesh = jax.make_mesh((2, 2), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)\n"
        "host = converters.load_host('siglip2', sys.argv[1], mesh=mesh)\n"
        "plain = converters.load_host('siglip2', sys.argv[1])\n"
        "for a, b in zip(jax.tree.leaves(host.params), jax.tree.leaves(plain.params)):\n"
        "    assert a.sharding.spec == converters.partition(a.shape, mesh), a.sharding\n"
        "    assert (np.asarray(a) == np.asarray(b)).all()\n"
        "table = host.params['text']['tokens']['table']\n"
        "assert table.addressable_shards[0].data.shape == (50, 32)\n"
        "assert converters.partition((3, 7), mesh) == P()\n"
        "assert converters.partition((4, 8, 8), mesh) == P(None, None, 'model')\n"
        "assert host.spec.weights_hash == plain.spec.weights_hash\n"
        "assert converters.save_host(host, sys.argv[2]) == host.spec.weights_hash\n"
        "x = {'pixel_values': np.ones((2, 28, 28, 3), np.float32)}\n"
        "diff = np.abs(np.asarray(host.forward(x).pooled) - np.asarray(plain.forward(x).pooled))\n"
        "assert diff.max() < 1e-5\n"
    )
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(folder.parent / "back")],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory_of_loading_is_under_1_3_models(dtype, tmp_path):
    """A 200 MB model half of which is one table, the shape of SigLIP2: the worst case."""
    config = {
        "model_type": "siglip",
        "vision_config": {
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "image_size": 32,
        },
        "text_config": {
            "hidden_size": 512,
            "intermediate_size": 512,
            "num_hidden_layers": 1,
            "num_attention_heads": 8,
            "vocab_size": 50_000,
        },
    }
    host = encoders.build("siglip2", config=config, dtype=dtype)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(host.params))
    converters.save_host(host, tmp_path)
    code = (
        "import sys, jax, converters\n"
        "def memory(key):\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(key))\n"
        "jax.numpy.zeros(3).block_until_ready()\n"
        "before = memory('VmRSS')\n"
        "host = converters.load_host('siglip2', sys.argv[1], dtype=sys.argv[2])\n"
        "print(memory('VmHWM') - before)\n"
    )
    environment = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), dtype],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout)
    print(f"peak {peak / 1e6:.0f} MB for a model of {size / 1e6:.0f} MB")
    assert peak < 1.3 * size, (peak, size)


# ---- tokenizer, preprocessor, command


def test_tokenizer_travels_and_is_needed_for_texts_only(folder, tmp_path):
    host = converters.load_host("siglip2", folder)
    assert host.tap(encoders.pixels(host, 1)).tokens.shape == (1, 4, 32)
    with pytest.raises(UserError, match="there is no tokenizer"):
        host.encode_text(["a photo of wood"])
    encoders.write_tokenizer(folder)
    host = converters.load_host("siglip2", folder)
    converters.save_host(host, tmp_path / "copy")
    copy, report = converters.load_host_with_report("siglip2", tmp_path / "copy")
    assert report.tokenizer == ("tokenizer.json", "tokenizer_config.json")
    ids = copy.tokenize(["a Photo of WOOD", "steel", "a " * 40])["input_ids"]
    assert ids.dtype == np.int32 and ids.shape == (3, 16)
    assert ids[0].tolist() == [2, 3, 4, 5, 99] + [0] * 11  # lower-cased, padded on the right
    assert ids[1].tolist() == [6, 99] + [0] * 14
    assert ids[2].tolist() == [2] * 15 + [99]
    texts = copy.encode_text(["a photo of wood", "steel"])
    assert texts.shape == (2, 32)
    images = copy.forward(encoders.pixels(copy, 3)).embedding
    assert copy.logits(images, texts).shape == (3, 2)
    with pytest.raises(UserError, match="single string"):
        copy.tokenize("steel")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="tokenizer cannot be read"):
        converters.load_host("siglip2", folder).tokenize(["a"])


def test_another_models_tokenizer_is_refused(tmp_path):
    for name, text, match in (
        ("siglip2", {"vocab_size": 99}, "gives id 99, the weights know 99 tokens"),
        ("clip", {"eos_token_id": 7}, "ends no text with id 7"),
    ):
        config = {**encoders.CONFIGS[name]}
        config["text_config"] = {**config["text_config"], **text}
        converters.save_host(encoders.build(name, config=config), tmp_path / name)
        encoders.write_tokenizer(tmp_path / name)
        with pytest.raises(UserError, match=match):
            converters.load_host(name, tmp_path / name).tokenize(["a photo"])


def test_clip_pads_to_its_context_and_pools_at_the_end_of_text(tmp_path):
    """Whatever stands after the first end of text changes nothing: attention is causal."""
    encoders.folder("clip", tmp_path)
    encoders.write_tokenizer(tmp_path)
    host = converters.load_host("clip", tmp_path)
    ids = host.tokenize(["a photo of wood", "steel"])["input_ids"]
    assert ids.shape == (2, 16) and (ids == 99).sum() == 2
    padded = np.where(ids == 0, 99, ids)  # as CLIP's own tokenizer pads
    encode = jax.jit(host.apply_text)
    a, b = (encode(host.params, {"input_ids": x}) for x in (ids, padded))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, host.encode_text(["a photo of wood", "steel"]))


def test_convert_checks_and_exports(folder, tmp_path):
    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "bin" / "convert"), *flags]
        return subprocess.run(command, capture_output=True, text=True)

    out, report = tmp_path / "out", tmp_path / "report.json"
    done = run("--host=siglip2", f"--weights={folder}", f"--to={out}", f"--report={report}")
    assert done.returncode == 0, done.stderr
    assert "bit-equal to the source" in done.stdout
    found = json.loads(report.read_text())
    assert found["weights_hash"] == found["written_hash"]
    assert found["ignored_settings"]["dtype"]
    shutil.rmtree(out)
    done = run("--host=clip", f"--weights={folder}")
    assert done.returncode == 2 and "this host needs 'clip'" in done.stderr
