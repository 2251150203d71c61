"""What holds for every device; here for the one that is none, on a GPU for that too."""

from typing import cast

import pytest
import torch
from torch import Tensor

from twostep.engine.gpu.cpu_device import CpuDevice
from twostep.engine.gpu.device import Device
from twostep.engine.kernels.kernel_set import KernelSet
from twostep.engine.kernels.twins import TorchKernels


class Doubling(TorchKernels):
    """Has one kernel that a graph cannot look into."""

    def rms_norm(self, x: Tensor, weight: Tensor, out: Tensor, *, eps: float, from_one: bool) -> None:
        if x.sum().item() >= 0:
            out.copy_(2 * x)


def devices() -> list[str]:
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "cpu":
        return CpuDevice(cast(KernelSet, Doubling()))
    from twostep.engine.gpu.cuda_device import CudaDevice

    return CudaDevice()


def numbers(device: Device, *values: int) -> Tensor:
    return torch.tensor(values, device=device.place)


def test_a_graph_computes_from_what_lies_in_its_memory_when_it_is_replayed(device: Device) -> None:
    source, target, scale = numbers(device, 1, 2), numbers(device, 0, 0), 3

    def work() -> None:
        made = source[:1] * scale + 1
        target.copy_(made.expand(2) + source.clamp(max=1))

    with device.working():
        work()
        graph = device.capture(work)
        device.fill(source, torch.tensor([5, 6]))
        scale = 100
        graph.replay()
        assert device.fetch(target).wait().tolist() == [17, 17]
        device.fill(source, torch.tensor([-1, 0]))
        graph.replay()
        assert device.fetch(target).wait().tolist() == [-3, -2]


def test_work_that_waits_for_the_device_cannot_be_captured(device: Device) -> None:
    source = numbers(device, 1, 2)
    with device.working(), pytest.raises(RuntimeError):
        device.capture(lambda: source.sum().item())


def test_numbers_that_were_sent_may_be_changed_at_once(device: Device) -> None:
    told = torch.arange(4)
    with device.working():
        there = device.send(told)
        device.fill(target := numbers(device, 0, 0, 0, 0), told)
        told.zero_()
        assert device.fetch(there).wait().tolist() == device.fetch(target).wait().tolist() == [0, 1, 2, 3]


def test_marks_are_passed_in_order_and_time_passes_between_them(device: Device) -> None:
    with device.working():
        first = device.mark()
        numbers(device, *range(1000)).sum()
        second = device.mark()
    second.wait()
    assert second.seconds_since(first) > 0


def test_memory_is_counted(device: Device) -> None:
    assert device.free_bytes() > 0
    assert device.peak_bytes(lambda: torch.zeros(1 << 20, device=device.place).sum().float()) >= 0


def test_a_fetch_is_as_late_as_can_be_where_there_is_no_gpu() -> None:
    device = CpuDevice(TorchKernels())
    source = torch.tensor([1, 2])
    fetched = device.fetch(source)
    source.zero_()
    assert fetched.wait().tolist() == [0, 0]


def test_a_kernel_is_recorded_whole_whatever_it_waits_for_on_a_cpu() -> None:
    device = CpuDevice(cast(KernelSet, Doubling()))
    x, out = torch.ones(2), torch.zeros(2)
    graph = device.capture(lambda: device.kernels.rms_norm(x, x, out, eps=0.0, from_one=False))
    x.fill_(4.0)
    graph.replay()
    assert out.tolist() == [8.0, 8.0]
