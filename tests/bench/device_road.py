"""The way from a drive to a GPU: pinned arena and copy lane beside each half alone, and kvikio.

Needs a CUDA device. Prints one JSON object; the exit status is 1 when the way has less than 0.90 of
the slower half.
"""

import argparse
import json
import platform
import sys
from pathlib import Path

import torch

from headrace.storage import VolumeConfig, measure_device_road, memory_status, probe_volume


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volume", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    config = VolumeConfig(path=arguments.volume)
    sys.setswitchinterval(0.0005)  # as the engine's process has it
    result = {
        **measure_device_road(config, rounds=arguments.rounds),
        "volume": probe_volume(config).why,
        "memory": str(memory_status()),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
