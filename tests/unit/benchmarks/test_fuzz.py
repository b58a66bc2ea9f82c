"""What fuzzing has found stays mended (tests/unit/golden/fuzz), and an error that nothing declares is found."""

import contextlib

import pytest

from benchmarks.fuzz import campaign, surfaces


@pytest.mark.parametrize("file", sorted((surfaces.GOLDEN / "fuzz").glob("*/*")), ids=lambda file: file.name)
async def test_a_finding_stays_mended(file, tmp_path):
    surface = surfaces.SURFACES[file.parent.name]
    async with surface.opened(tmp_path) as play:
        with contextlib.suppress(*surface.allowed):
            await play(file.read_bytes())


async def test_an_error_that_is_not_declared_is_found(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    surface, played = surfaces.SURFACES["records"]._replace(allowed=()), campaign.Played(findings=[])
    async with surface.opened(tmp_path) as play:
        await campaign.play_sample(surface, play, b"actions\n{", played, tmp_path)
    assert ["Undecodable: not a actions/1" in finding.what for finding in played.findings] == [True]
