"""An environment of Harbor: that it is one (scripts/test-integrations runs this; a trial needs a container)."""

from shelld_py.integrations.harbor import ShelldHarbor


def test_an_environment_is_whole():
    """Nothing that Harbor asks of one is missing."""
    assert ShelldHarbor.type() == "shelld"
    assert not ShelldHarbor.__abstractmethods__
