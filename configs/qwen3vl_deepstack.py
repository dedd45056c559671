"""FRM for one DeepStack stream of Qwen3-VL-4B (196 x 2560 at 448 x 448); Table 9's "DeepStack on".

    for k in 0 1 2; do
      bin/cache_features --host=qwen3_vl --tap=deepstack_$k --data=DIR
      bin/train --config=configs/qwen3vl_deepstack.py:$k --config.data.folder=DIR
    done
    bin/eval --task=description --host=qwen3_vl --data=DIR --deepstack=recovered \\
        --frm=runs/train/qwen3vl_post_merger/best --streams=runs/train/qwen3vl_deepstack_0/best \\
        --streams=runs/train/qwen3vl_deepstack_1/best --streams=runs/train/qwen3vl_deepstack_2/best

Each stream has a recoverer of its own, as large as the main one. Expect on TRACE (paper, Table 9):
identity accuracy 37.31 with the streams kept, 36.54 with them recovered.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common
from trace_jax.errors import UserError

STREAMS = ("0", "1", "2")


def get_config(stream: str = "0") -> ConfigDict:
    """The page.

    Args:
      stream: which one, what follows the colon of --config=configs/qwen3vl_deepstack.py:1.

    Raises:
      UserError: there is no such stream.
    """
    if stream not in STREAMS:
        raise UserError(f"configs/qwen3vl_deepstack.py:{stream}: the streams are 0, 1 and 2")
    return common.vlm_page(
        f"qwen3vl_deepstack_{stream}", host="qwen3_vl", tap=f"deepstack_{stream}"
    )
