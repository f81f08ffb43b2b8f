"""Columns of parquet files as arrays: numbers, lists of numbers, and images that were encoded into the file."""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np

from neuralsde.core.extras import need


def _storage(kind: Any) -> Any:
    """The plain type behind an extension type."""
    return kind.storage_type if hasattr(kind, "storage_type") else kind


def kind_of(kind: Any) -> Literal["numbers", "images", "closed"]:
    """What values of an arrow type can be read as."""
    import pyarrow as pa

    kind = _storage(kind)
    while _is_list(kind):
        kind = _storage(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return "numbers"
    return "images" if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else "closed"


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def values_of(column: Any, where: str) -> np.ndarray:
    """A column as an array; lists of lists become further axes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    array = array.storage if hasattr(array, "storage") else array
    if kind_of(array.type) == "images":
        return _pictures(array.to_pylist(), where)
    shape = [len(array)]
    while _is_list(array.type):
        sizes = pc.unique(pc.list_value_length(array)).to_pylist()
        if len(sizes) != 1 or sizes[0] is None:
            raise ValueError(f"{where} must have as many numbers in every row. Got {sizes[:5]} of them. Leave it out.")
        shape.append(sizes[0])
        array = array.flatten()
        array = array.storage if hasattr(array, "storage") else array
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def _pictures(cells: list[Any], where: str) -> np.ndarray:
    """Encoded images (PNG, JPEG) as (L, height, width, 3) uint8."""
    need(f"An image in {where}", "PIL")
    from PIL import Image

    images = []
    for k, cell in enumerate(cells):
        data = cell and cell["bytes"]
        if not data:
            raise ValueError(f"{where} has no image in row {k}, only a file's name. Use a dataset with images inside.")
        try:
            image = Image.open(io.BytesIO(data))
            if image.mode not in ("RGB", "RGBA", "L", "P"):
                raise ValueError(f"its mode is {image.mode}, not colours of 8 bits")
            images.append(np.asarray(image.convert("RGB")))
        except Exception as error:  # pillow's own errors
            raise ValueError(f"{where} has an image in row {k} that cannot be read ({error}). Leave it out.") from None
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        raise ValueError(f"{where} must have images of one size. Got {sorted(shapes)}. Resize them, or leave it out.")
    return np.stack(images)
