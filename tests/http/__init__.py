"""Tests of the parts, each by itself: real bash, real terminals, real files, no HTTP."""
