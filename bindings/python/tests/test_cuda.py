"""The collective for GPUs, as far as it can be seen without one: programs are lowered for CUDA, its absence has a reason, and
what the handler is told is right. What runs on a GPU is checked by `make test-gpu`."""

import concurrent.futures
import ctypes
import re
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh, PartitionSpec as P

import alight.jax
from alight import _alight
from alight.jax import _arenas, _collective, _connect, _cuda
from alight.jax.models import _programs


def program(devices, **more):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("tp",))

    def body(x, residual, weight, post_weight):
        return alight.jax.allreduce_norm(
            x[0], residual, weight, mesh=mesh, epsilon=1e-5, bias=1, post_weight=post_weight, limit=2.5, **more
        )

    mapped = jax.shard_map(body, mesh=mesh, in_specs=(P("tp"), P(), P(), P()), out_specs=(P(), P()), check_vma=False)
    like = jax.ShapeDtypeStruct
    shapes = (
        like((devices, 3, 64), jnp.bfloat16), like((3, 64), jnp.bfloat16), like((64,), jnp.float32), like((64,), jnp.float32)
    )  # fmt: skip
    return jax.jit(mapped), shapes


ATTRIBUTES = (
    "bias = 1 : i64", "capacity = 384 : i64", "limit_ms = 2500 : i64", "ranks = 4 : i64", "channel = 0 : i64",
    "devices = dense<[0, 1, 2, 3]> : tensor<4xi64>", "epsilon = 9.99999974E-6 : f32",
)  # fmt: skip


def check_call(text):
    """StableHLO: the call, once, with what the handler needs."""
    calls = re.findall(r"stablehlo\.custom_call @alight_allreduce_norm\(.*", text)
    assert len(calls) == 1
    for attribute in ATTRIBUTES:
        assert attribute in calls[0].replace("array<i64: 0, 1, 2, 3>", "dense<[0, 1, 2, 3]> : tensor<4xi64>")
    shapes = "(tensor<3x64xbf16>, tensor<3x64xbf16>, tensor<64xf32>, tensor<64xf32>, tensor<i32>) -> (tensor<3x64xbf16>, tensor<3x64xbf16>)"
    assert shapes in calls[0]


def test_a_program_is_lowered_for_cuda():
    function, shapes = program(4)
    lowered = function.trace(*shapes).lower(lowering_platforms=("cuda",))
    check_call(lowered.as_text())
    # Some versions say in StableHLO which version of the interface it is, all of them in HLO.
    call = [line for line in lowered.compiler_ir("hlo").as_hlo_text().splitlines() if "alight_allreduce_norm" in line]
    assert len(call) == 1 and "api_version=API_VERSION_TYPED_FFI" in call[0]


def test_a_program_is_exported_for_cuda():
    function, shapes = program(4)
    allowed = [export.DisabledSafetyCheck.custom_call("alight_allreduce_norm")]
    exported = export.export(function, platforms=["cuda"], disabled_checks=allowed)(*shapes)
    assert exported.platforms == ("cuda",)
    check_call(exported.mlir_module())


def test_the_handlers_for_cuda_are_handed_out():
    stages = [stages for name, platform, stages, _ in _alight.ffi_targets() if (name, platform) == ("alight_allreduce_norm", "CUDA")]
    assert len(stages) == 1
    assert set(stages[0]) == {"instantiate", "initialize", "execute"}


def test_without_a_gpu_there_is_a_reason():
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a CUDA driver")
    except OSError:
        pass
    assert "driver is not there" in _alight.cuda_probe([0, 1], [], 1.0)
    assert _alight.cuda_accounts() == [] and _alight.cuda_errors() == []
    alight.jax.check_collectives()


class Gpu:
    """A device, as far as it is looked at."""

    platform, process_index = "gpu", 0

    def __init__(self, id, version="cuda 13000", process=0):
        self.id, self.local_hardware_id, self.process_index = id + 100 + 10 * process, id, process
        self.client = type("Client", (), {"platform_version": version})()


def test_what_is_asked_of_gpus(monkeypatch):
    asked = []
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: asked.append(ordinals))
    groups = np.array([[Gpu(0), Gpu(2)], [Gpu(1), Gpu(3)]])
    assert _cuda.problem(groups, 4608, 2) is None
    assert asked == [(0, 2), (1, 3)]
    assert "not CUDA's: rocm" in _cuda.problem(np.array([Gpu(0, "ROCm 6")]), 4608, 2)
    assert "at most 16" in _cuda.problem(np.array([Gpu(i) for i in range(17)]), 4608, 2)
    assert _cuda.problem(groups, 20480, 2) is None and _cuda.problem(groups, 10240, 4) is None
    assert "at most 20480 of 2 bytes" in _cuda.problem(groups, 20488, 2)
    assert _cuda.problem(groups, 8192, 2, rows=128) is None
    assert _cuda.problem(groups, 8192, 2, rows=129) == "operands of 2113536 bytes, and among 2 GPUs the kernel is for up to 2097152"
    assert "at most 10240 of 4 bytes" in _cuda.problem(groups, 10244, 4)
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: f"not among {ordinals}" if 3 in ordinals else None)
    assert _cuda.problem(groups, 4608, 2) == "not among (1, 3)"


def test_the_more_gpus_the_smaller_the_operands(monkeypatch):
    """The largest operand is where both take the same time, as computed: that of the kernel grows with the ranks, that of psum does not."""
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: None)
    megabyte = 1 << 20
    for ranks, expected in {2: 2 * megabyte, 4: 2 * megabyte, 6: 2 * megabyte, 7: 1_680_000, 8: 1_371_428, 12: 785_454, 16: 548_571}.items():
        most = _cuda.largest(ranks)
        assert most == expected
        if most < 2 * megabyte:
            kernel = (ranks - 1) * most / 450e9
            psum = 16e-6 + 2 * (ranks - 1) / ranks * most / 450e9
            assert abs(kernel - psum) < 1e-9
        gpus = np.array([[Gpu(number) for number in range(ranks)]])
        rows = most // (2 * 64)
        assert _cuda.problem(gpus, 64, 2, rows=rows) is None
        assert f"among {ranks} GPUs the kernel is for up to {most}" in _cuda.problem(gpus, 64, 2, rows=rows + 1)
    # A model's chunk of 128 tokens goes through the kernel among 8, and not among 16; a token goes everywhere.
    assert 1 * 16384 * 4 < _cuda.largest(16) < 128 * 4608 * 2 < _cuda.largest(8)


def test_groups_of_several_processes_each_in_one(monkeypatch):
    """Two hosts with four GPUs, `dp` over the hosts: a process sees its own GPUs, by their numbers in it."""
    partial = jax.ShapeDtypeStruct((1, 4608), jnp.bfloat16)
    hosts = np.array([[Gpu(number, process=process) for number in range(4)] for process in (0, 1)])
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: pytest.fail("one process may say what another does not"))
    assert "call alight.jax.connect()" in _collective._no_handler(hosts, partial, False)
    monkeypatch.setattr(_connect, "_gpus", None)
    before = _connect.state()
    assert _collective._no_handler(hosts, partial, False) is None
    assert [device.id for device in _collective._distinct(hosts).flat] == [100, 101, 102, 103]
    pairs = np.array([hosts[0][:2], hosts[0][2:], hosts[1][:2], hosts[1][2:]])
    assert _collective._no_handler(pairs, partial, False) is None
    assert [device.id for device in _collective._distinct(pairs).flat] == [100, 101, 102, 103]
    # A program is the same everywhere: it cannot say that a GPU is of two groups.
    other = np.array([*pairs[:2], hosts[1][[0, 2]], hosts[1][[1, 3]]])
    assert _collective._no_handler(other, partial, False) == "processes have cut their GPUs into groups differently"
    assert "call alight.jax.connect()" in _collective._no_handler(hosts.T, partial, False)
    assert "at most 20480" in _collective._no_handler(hosts, jax.ShapeDtypeStruct((1, 20488), jnp.bfloat16), False)
    monkeypatch.setattr(_connect, "_gpus", "the trial among the GPUs of process 1 has failed")
    assert _collective._no_handler(hosts, partial, False) == "the trial among the GPUs of process 1 has failed"
    assert _connect.state() != before


def test_groups_across_processes(monkeypatch):
    """A process for each GPU: groups of processes that share memory of theirs, as all processes say alike."""
    partial = jax.ShapeDtypeStruct((1, 4608), jnp.bfloat16)
    gpus = np.array([Gpu(0, process=process) for process in range(4)])
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: pytest.fail("one process may say what another does not"))
    monkeypatch.setattr(_connect, "_gpus", None)
    before = _connect.state()
    monkeypatch.setattr(_connect, "_groups", [0, 0, 2, 2])
    assert _connect.state() != before
    monkeypatch.setattr(_connect, "_gpus_across", "no memory")
    pairs = gpus.reshape(2, 2)
    assert _collective._no_handler(pairs, partial, False) is None
    assert _collective._distinct(pairs) is pairs
    assert "some of which" in _collective._no_handler(gpus[None], partial, False)
    monkeypatch.setattr(_connect, "_groups", [0, 0, -1, -1])
    assert _collective._no_handler(pairs, partial, False) == "no memory"
    assert _collective._no_handler(pairs[:1], partial, False) is None
    monkeypatch.setattr(_connect, "_gpus", "no compiler")
    assert _collective._no_handler(pairs[:1], partial, False) == "no compiler"


def test_a_program_for_several_processes_names_gpus_by_numbers_that_all_know(monkeypatch):
    gpus = np.array([[Gpu(local, process=process) for process in (0, 1) for local in (0, 1)]])
    monkeypatch.setattr(_collective._mesh, "groups", lambda mesh, axis: gpus)
    monkeypatch.setattr(_connect, "_gpus", None)
    monkeypatch.setattr(_connect, "_groups", [0, 0])
    function, shapes = program(4)
    text = function.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    [call] = re.findall(r"stablehlo\.custom_call @alight_allreduce_norm\(.*", text)
    call = re.sub(r"array<i64: ([\d, ]+)>", r"dense<[\1]> : tensor<4xi64>", call)
    assert "devices = dense<[100, 101, 110, 111]>" in call and "processes = dense<[0, 0, 1, 1]>" in call


def test_processes_that_see_each_other():
    see = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]], bool)
    assert _arenas._together(see) == [0, 0, 2, -1]
    assert _arenas._together(np.ones((3, 3), bool)) == [0, 0, 0]
    one_way = np.array([[1, 1], [0, 1]], bool)
    assert _arenas._together(one_way) == [0, 1]
    offers = [[(0, 0, b"")] * 8] * 5
    assert [_arenas._trial_group([0] * 5, offers, me) for me in range(5)] == [[0, 1], [0, 1], [2, 3], [2, 3], [4]]
    assert _arenas._trial_group([0, -1, 0], offers, 1) == []


@pytest.mark.parametrize("failing", [None, 2])
def test_processes_that_see_each_other_form_a_group_though_they_do_not_see_the_others(failing, monkeypatch):
    """Two islands, {0, 1} and {2, 3}, of GPUs of one host: a process that cannot open what the other island offers keeps its own, if its trial works."""
    count, here = 4, threading.local()
    barrier, told, tried, closed = threading.Barrier(count), [None] * count, [], []

    def gather(x):
        told[here.me] = x
        barrier.wait()
        found = np.stack(told)
        barrier.wait()
        return found

    def trial(devices, folders, limit):
        tried.append((here.me, devices))
        return "wrong results" if here.me == failing else None

    def open_(me, offers):
        if any(other // 2 != me // 2 for _, other, _ in offers):
            raise RuntimeError("peer access is not supported between these two devices")

    library = types.SimpleNamespace(
        cuda_has_fabric=lambda ordinals: False, cuda_offer=lambda ordinals, *_: [bytes(_arenas.HANDLE)], cuda_open=open_, cuda_trial=trial,
        cuda_close=lambda free: closed.append((here.me, free)),
    )  # fmt: skip
    monkeypatch.setattr(_arenas, "_alight", library)
    monkeypatch.setattr(
        _arenas, "jax", types.SimpleNamespace(process_index=lambda: here.me, local_devices=lambda: [Gpu(0, process=here.me)])
    )

    def process(me):
        here.me = me
        return _arenas.share([0] * count, gather)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        found = list(pool.map(process, range(count)))
    assert sorted(tried) == [(0, [100, 110]), (1, [100, 110]), (2, [120, 130]), (3, [120, 130])]
    assert [labels for labels, _ in found] == [[0, 0, 2, 2] if failing is None else [0, 0, -1, -1]] * count
    assert sorted(closed) == ([] if failing is None else [(2, False), (2, True), (3, False), (3, True)])
    assert failing is None or found[2][1] == "wrong results"


@pytest.mark.parametrize(("own", "all_of_them", "said"), [
    (None, [False, False], None), ("no peers", [True, False], "no peers"),
    (None, [False, True], "the trial among the GPUs of process 1 has failed"),
])  # fmt: skip
def test_all_processes_say_what_one_of_them_has_found(own, all_of_them, said, monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu(0), Gpu(1)])
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: own if ordinals == (0, 1) else pytest.fail(str(ordinals)))
    monkeypatch.setattr(_connect, "_gather", lambda x: np.array([[one] for one in all_of_them]))
    assert _connect._tried() == said


def test_kept_programs_depend_on_what_the_trial_says(monkeypatch):
    """Else a program that was compiled where the trial failed stays without the custom call, and one with it comes where it fails."""
    groups = np.array([[Gpu(0), Gpu(2)], [Gpu(1), Gpu(3)]])
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: None)
    assert _cuda.verdicts(groups) == (None, None)
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: "no peers" if 3 in ordinals else None)
    assert _cuda.verdicts(groups) == (None, "no peers")
    assert _cuda.verdicts(np.array([[Gpu(0, "ROCm 6"), Gpu(1, "ROCm 6")]])) == ()
    assert _cuda.verdicts(np.array([jax.devices()[:2]])) == ()


def test_a_gpu_alone_is_not_tried(monkeypatch):
    """Nothing of its programs is a call, so no kernel has to be compiled for a trial."""
    monkeypatch.setattr(_cuda, "probe", lambda ordinals: pytest.fail("tried"))
    assert _cuda.verdicts(np.array([[Gpu(0)], [Gpu(1)]])) == ()


def test_programs_ask_for_the_trial_before_one_is_looked_for(monkeypatch):
    made_from = []
    mesh = Mesh(np.array(jax.devices()[:1]), ("tp",))
    programs = object.__new__(_programs.Programs)
    programs._made, programs.mesh, programs.net = {}, mesh, type("Net", (), {"axis": "tp"})()
    monkeypatch.setattr(programs, "_jitted", lambda kind, *known: None)
    monkeypatch.setattr(programs, "_identity", lambda: ())
    monkeypatch.setattr(_cuda, "verdicts", lambda groups: ("no peers",))
    monkeypatch.setattr(_programs, "kept", lambda jitted, devices, *more: made_from.append(more))
    programs.compiled("empty")
    assert ("no peers",) in made_from[0]
