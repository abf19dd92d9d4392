"""What a process does about itself."""

import gc

from orchestrator.process import importing


def test_what_is_imported_is_never_walked_again_and_everything_else_still_is() -> None:
    class Cycle:
        """Garbage once nobody holds it."""

        def __init__(self) -> None:
            self.itself = self

    try:
        with importing():
            assert not gc.isenabled()
            kept = [Cycle() for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() > len(kept)
        Cycle()
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
