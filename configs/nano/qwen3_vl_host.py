"""Pretrains the nano host `qwen3_vl_nano` on procedural renders, questions and answers.

    bin/generate --config=configs/nano/pretrain_data.py        # the pictures, once
    bin/generate --config=configs/nano/pretrain_burnt.py
    bin/train --config=configs/nano/qwen3_vl_host.py
    bin/convert --host=qwen3_vl_nano --weights=runs/train/qwen3_vl_nano_host/host \\
        --dtype=bfloat16 --to=trace_jax/assets/qwen3_vl_nano

The class is Qwen3-VL's, toy sizes: a tower of 6 blocks of width 192 on 16 px patches, started from
`siglip2_nano` as Qwen3-VL's own was from SigLIP 2; one DeepStack stream; a decoder of 4 layers of
width 192. It answers the paper's three prompts about pristine pictures, and questions about damage
about pristine and burnt ones; of burnt pictures it is never told what they were.

Cost: 2,000 steps, 65 minutes on one core (0.5 steps/s), 4.4 GB of memory. Expect at the end, as the
run prints: of 300 instances never trained on, 92% found from a second view, and 80% of the answers'
tokens the likeliest. It is far from trained out: it names 20% of the pristine test objects among
189 types. `--config.host.start=FOLDER` goes on from a host that a run wrote.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs.nano import host_common


def get_config() -> ConfigDict:
    """The page."""
    config = host_common.base("qwen3_vl_nano")
    config.kind = "language"
    config.host = ConfigDict(
        {
            "name": "qwen3_vl_nano",
            # A host of the same sizes to go on from, a folder; "" for none.
            "start": "",
            # Where the tower starts; "" for random.
            "tower": "siglip2_nano",
            # Rows of the vocabulary besides special tokens and whole questions.
            "vocabulary": 2000,
            "preprocessor": {"min_pixels": 96 * 96, "max_pixels": 96 * 96},
            "config": {
                "model_type": "qwen3_vl",
                "architectures": ["Qwen3VLForConditionalGeneration"],
                "tie_word_embeddings": True,
                "vision_config": {
                    "model_type": "qwen3_vl_vision",
                    "depth": 6,
                    "hidden_size": 192,
                    "num_heads": 3,
                    "intermediate_size": 768,
                    "hidden_act": "gelu_pytorch_tanh",
                    "out_hidden_size": 192,
                    "patch_size": 16,
                    "spatial_merge_size": 2,
                    "temporal_patch_size": 2,
                    "num_position_embeddings": 36,
                    "deepstack_visual_indexes": [2],
                },
                "text_config": {
                    "model_type": "qwen3_vl_text",
                    "hidden_size": 192,
                    "intermediate_size": 512,
                    "num_hidden_layers": 4,
                    "num_attention_heads": 3,
                    "num_key_value_heads": 3,
                    "head_dim": 64,
                    "hidden_act": "silu",
                    "rms_norm_eps": 1e-6,
                    "rope_parameters": {
                        "rope_theta": 10000.0,
                        "rope_type": "default",
                        "mrope_section": [12, 10, 10],
                        "mrope_interleaved": True,
                    },
                },
            },
        }
    )
    config.data.side = 96
    config.data.burnt = "runs/data/nano_pretrain_burnt"
    config.batch = ConfigDict(
        # size: pristine instances, two pictures of each; second: share of their pictures that are
        # asked twice; calm: share of those second questions that are about (absent) damage; burnt:
        # burnt pictures, each asked burnt_questions times.
        {
            "size": 24,
            "hard_types": 6,
            "same_view": 0.5,
            "second": 1.0,
            "calm": 0.3,
            "burnt": 16,
            "burnt_questions": 2,
        }
    )
    config.loss = ConfigDict(
        {
            "answer": 1.0,
            "pooled": 0.3,
            "object_type": 0.3,
            "material": 0.3,
            "label_smoothing": 0.05,
        }
    )
    config.optim.lr = 1e-3
    config.loop.steps = 2000
    config.loop.best_metric = "token_hit"
    return config
