"""The image under test: built by scripts/test-image, which names it in SHELLD_TEST_IMAGE. Without that, nothing here
is collected: it needs root, buildah and podman."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.image.containers import Container, container

collect_ignore_glob = [] if "SHELLD_TEST_IMAGE" in os.environ else ["test_*.py"]


@pytest.fixture
def start_container() -> Iterator[Callable[..., Container]]:
    """A function that starts a container of the test's own; its words are options of `podman run`."""
    with ExitStack() as stack:

        def start(*options: str, image: str = os.environ["SHELLD_TEST_IMAGE"]) -> Container:
            return stack.enter_context(container(image, *options))

        yield start
