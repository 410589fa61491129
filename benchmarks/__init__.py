"""Speed and scale, as ratios measured in one run; never part of the test run."""
