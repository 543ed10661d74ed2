"""The tools of an agent: what a model may call, described for it, done by the computer."""
