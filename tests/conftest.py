"""How many random cases the tests try: `quick`, always the same, or `--hypothesis-profile=deep`, many and new ones."""

from hypothesis import settings

settings.register_profile("quick", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile("quick")
