"""The image under test, which SHELLD_TEST_IMAGE names, and the bundle, whose directory is SHELLD_TEST_BUNDLE.

scripts/test-image builds both. What is not named is not collected: it needs root, and the image buildah and podman.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.image.containers import Container, container

collect_ignore = [f"test_{name}.py" for name in ("image", "bundle") if f"SHELLD_TEST_{name.upper()}" not in os.environ]


@pytest.fixture
def start_container() -> Iterator[Callable[..., Container]]:
    """A function that starts a container of the test's own; its words are options of `podman run`."""
    with ExitStack() as stack:

        def start(
            *options: str, image: str = os.environ.get("SHELLD_TEST_IMAGE", ""), locked: bool = True
        ) -> Container:
            return stack.enter_context(container(image, *options, locked=locked))

        yield start
