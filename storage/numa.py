"""Which processors are near a GPU: memory that they touch first lies near it too."""

from pathlib import Path


def cpus_near(pci_address: str, *, sys: Path = Path("/sys")) -> set[int]:
    """Processors of the memory node of a PCI device ("0000:3b:00.0").

    Empty on a machine with one node, and where the kernel does not know: then any will do.
    """
    if len(list((sys / "devices/system/node").glob("node[0-9]*"))) < 2:
        return set()
    try:
        node = int((sys / "bus/pci/devices" / pci_address / "numa_node").read_text())
        text = (sys / f"devices/system/node/node{node}/cpulist").read_text()
    except (OSError, ValueError):
        return set()
    return parse_cpus(text)


def parse_cpus(text: str) -> set[int]:
    """The kernel's way to write a set of processors: "0-3,8" is {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found
