"""Reads a safetensors file with nothing but json and struct: read_safetensors.py FILE

Prints the metadata, then every tensor with its shape and the bits of its values. Exits 1 for a file that the format
does not allow (https://github.com/huggingface/safetensors#format).
"""

import json
import math
import pathlib
import struct
import sys


def refuse_repeated(pairs):
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), f"a name comes twice in {names}"
    return dict(pairs)


def main(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    assert length % 8 == 0, f"the header has {length} bytes, no multiple of 8: the data is not aligned"
    text = data[8 : 8 + length].decode("utf-8")
    assert text.startswith("{"), "the header does not begin with {"
    header = json.loads(text, object_pairs_hook=refuse_repeated)
    print(json.dumps(header.pop("__metadata__"), sort_keys=True))
    values = data[8 + length :]
    at = 0
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        assert tensor["dtype"] == "F32", name
        assert begin == at and end - begin == 4 * math.prod(tensor["shape"]), f"{name} leaves a gap or overlaps"
        bits = struct.unpack_from(f"<{(end - begin) // 4}I", values, begin)
        print(name, tensor["shape"], " ".join(f"{b:08x}" for b in bits))
        at = end
    assert at == len(values), "bytes follow the last tensor"


main(sys.argv[1])
