"""Exchange of tensors with other libraries, without copies."""

from __future__ import annotations

import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import gcodec
from gcodec._tensors import dlpack

FLOATS = ["f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"]
INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"]
NUMPY = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
}  # fmt: skip
TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
    "f8e4m3fnuz": torch.float8_e4m3fnuz, "f8e5m2fnuz": torch.float8_e5m2fnuz,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64, "bool": torch.bool,
}  # fmt: skip


def patterns(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Every bit pattern, including NaN, except for bool."""
    width = np.dtype(NUMPY[dtype]).itemsize
    count = int(np.prod(shape))
    random = np.random.default_rng(7).integers(0, 256, count * width, dtype=np.uint8)
    if dtype == "bool":
        random &= 1
    return random.view(NUMPY[dtype]).reshape(shape)


def the_bytes(x: object) -> bytes:
    """Returns the bytes of the elements, computed by the other library."""
    if isinstance(x, torch.Tensor):
        return x.contiguous().view(torch.uint8).numpy().tobytes() if x.numel() else b""
    return np.asarray(x).tobytes()


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_element_type_goes_from_every_library_to_every_library(dtype: str) -> None:
    array = patterns(dtype, (24, 50))
    bits = torch.from_numpy(array.view(np.uint8).copy())
    given: dict[str, object] = {"numpy": array, "torch": bits.view(TORCH[dtype]).reshape(24, 50)}
    with jax.enable_x64(True):
        given["jax"] = jnp.asarray(array)
        for name, x in given.items():
            data = gcodec.encode({"x": x}, "lossless")
            assert data == gcodec.encode({"x": array}, "lossless"), name
            tensor = gcodec.decode(data)["x"]
            assert (tensor.dtype, tensor.shape, tensor.tobytes()) == (dtype, (24, 50), array.tobytes())
            assert tensor.nbytes == array.nbytes and tensor.size == array.size
            for out in (tensor.numpy(), tensor.torch(), tensor.jax()):
                assert tuple(out.shape) == (24, 50)
                assert the_bytes(out) == array.tobytes(), (name, type(out))
            assert tensor.numpy().dtype == NUMPY[dtype]
            assert tensor.torch().dtype == TORCH[dtype]
            assert tensor.jax().dtype == NUMPY[dtype]


@pytest.mark.parametrize("dtype", FLOATS)
def test_outputs_share_one_memory(dtype: str) -> None:
    tensor = gcodec.decode(gcodec.encode({"x": patterns(dtype, (64, 64))}, "raw"))["x"]
    address = tensor.data_ptr
    assert address % 64 == 0
    assert tensor.numpy().ctypes.data == address
    assert tensor.torch().data_ptr() == address
    with jax.enable_x64(True):
        assert tensor.jax().unsafe_buffer_pointer() == address
    assert tensor.bits().data_ptr == address
    array = tensor.bits().numpy()
    array[0, 0] ^= 1
    assert tensor.tobytes() == array.tobytes(), "writing to one writes to all"


def test_small_tensors_share_pages_but_no_bytes() -> None:
    # 5 MiB in all, enough for large pages.
    arrays = {str(i): np.full((100 + i, 300), i, np.float32) for i in range(40)}
    tensors = gcodec.decode(gcodec.encode(arrays, "raw"))
    assert all(tensor.data_ptr % 64 == 0 for tensor in tensors.values())
    views = {name: tensor.numpy() for name, tensor in tensors.items()}
    views["7"][:] = -1
    assert all(np.array_equal(views[name], array) for name, array in arrays.items() if name != "7")
    kept = views["20"]
    del tensors, views
    gc.collect()
    assert np.array_equal(kept, arrays["20"])


def test_memory_lives_as_long_as_any_of_its_users(gradient: np.ndarray) -> None:
    tensor = gcodec.decode(gcodec.encode(gradient, "raw"))["tensor"]
    views = [tensor.numpy(), tensor.torch(), tensor.jax()]
    unused = tensor.__dlpack__(max_version=(1, 0)), tensor.__dlpack__()
    del tensor, unused
    gc.collect()
    junk = [np.full_like(gradient, i) for i in range(8)]
    assert all(np.array_equal(np.asarray(view), gradient) for view in views) and len(junk) == 8


def test_inputs_are_not_copied_and_are_let_go(gradient: np.ndarray) -> None:
    class Watched(np.ndarray):
        pass

    watched = gradient.view(Watched)
    seen = weakref.ref(watched)
    gcodec.encode(watched, "topk")
    del watched
    gc.collect()
    assert seen() is None, "the producer's deleter was called"
    # Without a copy, a write through one view is visible through another.
    shared = torch.from_numpy(gradient)
    before = gcodec.encode(shared, "raw")
    gradient[0, 0] += 1
    assert gcodec.encode(shared, "raw") != before


def layouts(dtype: str) -> dict[str, np.ndarray]:
    base = np.arange(2 * 3 * 4 * 5).astype(NUMPY[dtype]).reshape(2, 3, 4, 5)
    return {
        "row-major": base,
        "transposed": base.T,
        "channels-last": base.transpose(0, 2, 3, 1),
        "every second": base[:, :, ::2, 1::3],
        "backwards": base[::-1, :, ::-1],
        "broadcast": np.broadcast_to(base[:, :1], (2, 7, 4, 5)),
        "one column": base[..., :1],
        "0-d": base[1, 2, 3, 4:].reshape(()),
        "no elements": base[:0],
        "no elements inside": base[:, :, 2:2].transpose(3, 2, 1, 0),
        "one element": base[:1, :1, :1, :1].T,
    }


@pytest.mark.parametrize("name", layouts("f32"))
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e5m2", "f64"])
def test_any_layout_is_taken_in_row_major_order(name: str, dtype: str) -> None:
    array = layouts(dtype)[name]
    tensor = gcodec.decode(gcodec.encode(array, "raw"))["tensor"]
    assert tensor.shape == array.shape
    assert tensor.tobytes() == np.ascontiguousarray(array).tobytes()
    for out in (tensor.numpy(), tensor.torch(), tensor.jax()):
        assert tuple(out.shape) == array.shape


def test_layouts_of_torch(gradient: np.ndarray) -> None:
    image = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8)
    channels_last = image.to(memory_format=torch.channels_last)
    assert not channels_last.is_contiguous()
    expected = gcodec.encode(image, "natural")
    assert gcodec.encode(channels_last, "natural") == expected
    matrix = torch.from_numpy(gradient)
    assert gcodec.encode(matrix.T, "topk") == gcodec.encode(matrix.T.contiguous(), "topk")
    with_history = (image.clone().requires_grad_(True)) * 1
    assert gcodec.encode(with_history, "natural") == expected
    assert gcodec.encode(torch.nn.Parameter(image), "natural") == expected
    complex_part = torch.view_as_complex(torch.stack([image, image], -1)).conj().imag
    assert complex_part.is_neg()
    assert gcodec.encode(complex_part, "raw") == gcodec.encode(-image, "raw")
    float4 = torch.zeros(4, dtype=torch.float4_e2m1fn_x2)
    with pytest.raises(TypeError, match="element type"):
        gcodec.encode(float4, "raw")


def test_read_only_and_foreign_byte_order(gradient: np.ndarray) -> None:
    expected = gcodec.encode(gradient, "topk")
    gradient.flags.writeable = False
    assert gcodec.encode(gradient, "topk") == expected
    assert gcodec.encode(gradient.astype(">f4"), "topk") == expected
    half = gradient.astype(ml_dtypes.bfloat16)
    half.flags.writeable = False
    assert gcodec.decode(gcodec.encode(half, "raw"))["tensor"].dtype == "bf16"
    assert np.frombuffer(gcodec.decode(expected, framework="numpy")["tensor"].tobytes(), np.float32).size


def test_what_is_no_tensor_is_refused(gradient: np.ndarray) -> None:
    for wrong in (3, "w", [1, 2], {"a": {"b": 1.0}}, object(), torch.Tensor, gradient.astype(object)):
        with pytest.raises((TypeError, BufferError)):
            gcodec.encode(wrong, "raw")
    with pytest.raises(TypeError, match="a.b is a float"):
        gcodec.encode({"a": {"b": 1.0}}, "raw")
    with pytest.raises(TypeError, match="is complex64"):
        gcodec.encode(gradient.astype(np.complex64), "raw")


class Producer:
    """A DLPack producer of any device and version."""

    def __init__(self, x: np.ndarray, device: int, takes: set[str]) -> None:
        self.x, self.device, self.takes, self.asked = x, device, takes, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **given: object) -> object:
        if unknown := set(given) - self.takes:
            raise TypeError(f"unexpected {unknown}")
        self.asked.append(given)
        return self.x.__dlpack__(**{key: value for key, value in given.items() if key != "stream"})


def test_producers_of_any_age_and_device(gradient: np.ndarray) -> None:
    # The codec does not run on devices, so tensors are copied to the host.
    codec = "chunked"
    expected = gcodec.encode(gradient, codec)
    for device, takes in [(1, set()), (1, {"max_version"}), (3, {"max_version"}), (2, {"max_version", "dl_device", "copy"})]:
        producer = Producer(gradient, device, takes)
        assert gcodec.encode(producer, codec) == expected
    assert producer.asked == [{"max_version": (1, 0), "dl_device": (1, 0), "copy": True}]
    with pytest.raises(BufferError, match="device 2"):
        gcodec.encode(Producer(gradient, 2, {"max_version"}), codec)


def test_our_capsules_keep_dlpacks_rules() -> None:
    tensor = gcodec.Tensor("f32", (2, 3), bytes(range(24)))
    assert "dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 1)))
    assert '"dltensor"' in repr(tensor.__dlpack__()) and '"dltensor"' in repr(tensor.__dlpack__(max_version=(0, 8)))
    assert tensor.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(2, 0))
    copied = np.from_dlpack(tensor, copy=True)
    assert copied.ctypes.data != tensor.data_ptr and copied.tobytes() == tensor.tobytes()
    assert tensor.__dlpack__(copy=False) is not None
    # A capsule can be consumed once.
    capsule = tensor.__dlpack__()

    class Again:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: object) -> object:
            return capsule

    gcodec.encode(Again(), "raw")
    with pytest.raises(BufferError):
        gcodec.encode(Again(), "raw")
    with pytest.raises(BufferError):
        gcodec.encode(type("Wrong", (Again,), {"__dlpack__": lambda self, **_: 3})(), "raw")


def test_elements_without_a_name_in_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    small = gcodec.Tensor("f4e2m1", (5,), b"\x21\x43\x05")
    assert small.bits().numpy().tolist() == [0x21, 0x43, 5]
    for to in (small.numpy, small.torch, small.jax):
        with pytest.raises(TypeError, match="bits"):
            to()
    with pytest.raises(BufferError, match="bits"):
        small.__dlpack__()
    half = gcodec.Tensor("bf16", (2,), b"\x80\x3f\x00\x40")
    assert half.numpy().astype(np.float32).tolist() == [1.0, 2.0]
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match="ml_dtypes"):
        half.numpy()
    assert half.bits().numpy().tolist() == [0x3F80, 0x4000]
    assert half.torch().tolist() == [1.0, 2.0]


def test_tensors_by_themselves() -> None:
    tensor = gcodec.Tensor("f32", (2, 3), bytes(range(24)))
    assert repr(tensor) == "Tensor(f32, (2, 3))" and len(tensor) == 2
    again = pickle.loads(pickle.dumps(tensor))
    assert (again.dtype, again.shape, again.tobytes()) == ("f32", (2, 3), bytes(range(24)))
    with pytest.raises(gcodec.InputError):
        gcodec.Tensor("f32", (2, 3), b"")
    with pytest.raises(gcodec.InputError):
        gcodec.Tensor("f33", (2, 3), b"")
    with pytest.raises(gcodec.InputError):
        dlpack.convert(tensor, "keras")  # type: ignore[arg-type]
    wide = gcodec.Tensor("f64", (1,), np.array([0.5]).tobytes())
    assert wide.jax().dtype == np.float32, "as jax.numpy.asarray, unless x64 is enabled"


def test_jaxs_64_bits_are_narrowed_as_jax_does() -> None:
    array = np.arange(1000, dtype=np.int64)
    out = gcodec.decode(gcodec.encode(array, "raw"), framework="jax")["tensor"]
    assert out.dtype == np.int32 and np.array_equal(np.asarray(out), array)
