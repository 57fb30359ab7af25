"""What the tests share: the golden trace, and small models that transformers saved."""

import os
import pathlib

import pytest

# The tests share their machine: threads that spin while they wait take it from those that compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

TREE = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = TREE / "tests" / "golden" / "tiny-fp8"


@pytest.fixture(scope="session")
def golden():
    """The checkpoint's folder."""
    return GOLDEN


@pytest.fixture(scope="session")
def trace():
    """Inputs and outputs of every layer, by name, BF16."""
    from safetensors.numpy import load_file
    import ml_dtypes  # noqa: F401: the type of the arrays
    return load_file(GOLDEN / "trace.safetensors")


@pytest.fixture
def engine(golden):
    """A small engine that rejects up to four drafts."""
    import dsv4rt
    with dsv4rt.Engine(golden, max_context_tokens=1024, max_step_tokens=256, max_sequences=4,
                       draft_budget_tokens=4) as made:
        yield made


@pytest.fixture(scope="session")
def random_model():
    """An untrained model with every kind of layer."""
    import models
    return models.random_model()


@pytest.fixture(scope="session")
def trained_model():
    """A small model that has learned some of this repository's documents, its weights representable in BF16."""
    import models
    return models.trained_model(models.text_bytes(TREE))
