"""What a machine is asked, and what is said when it lacks something."""

import pytest

from toolkit.engine.trtllm.devices import own_gpus
from toolkit.engine.trtllm.gpus import architecture
from toolkit.engine.trtllm.machine import find_machine, same_release
from toolkit.errors import BuildError, InputError, MissingDependencyError


def test_a_machine_is_known_without_importing_its_packages(installation):
    machine = find_machine()  # its torch raises when it is imported
    assert machine.program == installation.bin / "trtllm-build"
    assert (machine.tensorrt_llm, machine.tensorrt, machine.cuda) == ("1.2.1", "10.14.1", "12.9")
    assert (machine.sm, machine.gpus) == (90, ("0",))


@pytest.mark.parametrize(
    ("missing", "says"),
    [("trtllm-build", "trtllm-build is not on PATH"), ("nvidia-smi", "no NVIDIA GPU here")],
)
def test_what_is_missing_exits_with_three(missing, says, installation):
    installation.remove(missing)
    with pytest.raises(MissingDependencyError, match=says) as error:
        find_machine()
    assert error.value.exit_code == 3


def test_a_program_that_is_no_python_script_has_no_release(installation):
    installation.program("trtllm-build", "\x7fELF")
    with pytest.raises(MissingDependencyError, match="not a Python script"):
        find_machine()


def test_a_python_without_the_package_has_no_release(installation):
    for info in installation.site.glob("tensorrt_llm*"):
        (info / "METADATA").unlink()
        info.rmdir()
    with pytest.raises(MissingDependencyError, match="has no package tensorrt_llm"):
        find_machine()


def test_a_driver_that_fails_is_quoted(installation):
    installation.program(
        "nvidia-smi", "#!/bin/sh\necho 'NVML: Driver/library version mismatch'\nexit 18\n"
    )
    with pytest.raises(BuildError, match="exit code 18: NVML: Driver/library version mismatch"):
        find_machine()


def test_gpus_of_two_architectures_need_a_choice(installation, monkeypatch):
    installation.gpus("9.0", "8.0")
    with pytest.raises(InputError, match="sm_80, sm_90; choose those of one"):
        find_machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert (find_machine().sm, find_machine().gpus) == (80, ("1",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(MissingDependencyError, match="no NVIDIA GPU is visible"):
        find_machine()


@pytest.mark.parametrize(
    ("said", "installed", "same"),
    [
        ("1.2.1", "1.2.1", True),
        ("1.2.1", "1.2.1+cu129", True),
        ("1.2", "1.2.1", True),
        ("1.2.1", "1.2.1rc2", False),
        ("1.2", "1.20.0", False),
        ("1.2.1", "1.2.10", False),
    ],
)
def test_releases_are_the_same_by_their_numbers(said, installed, same):
    assert same_release(said, installed) is same


@pytest.mark.parametrize(
    ("name", "sm"),
    [("H100", 90), ("l40s", 89), ("sm_90", 90), ("SM120", 120), ("8.6", 86), ("H9", None)],
)
def test_gpus_are_known_by_name_and_architecture(name, sm):
    assert architecture(name) == sm


def test_builds_side_by_side_get_gpus_of_their_own(tmp_path):
    with (
        own_gpus(("0", "1", "2"), 2, tmp_path) as first,
        own_gpus(("0", "1", "2"), 2, tmp_path) as other,
    ):
        assert first == ("0", "1")
        assert other == ("2",)
    with own_gpus(("0", "1", "2"), 1, tmp_path) as again:
        assert again == ("0",)
