"""What fuzzing has found stays mended (tests/unit/golden/fuzz), and an error that nothing declares is found."""

import pytest

from benchmarks.fuzz import bundles, campaign, surfaces


@pytest.mark.parametrize("file", sorted((bundles.GOLDEN / "fuzz").glob("*/*")), ids=lambda file: file.name)
async def test_a_finding_stays_mended(file, tmp_path):
    surface, played, own = surfaces.SURFACES[file.parent.name], campaign.Played(findings=[]), tmp_path / "a" / "b" / "c"
    own.mkdir(parents=True)
    async with surface.opened(own) as play:
        await campaign.play_sample(surface, play, file.read_bytes(), played, tmp_path)
    assert played.findings == []


async def test_an_error_that_is_not_declared_is_found(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    surface, played = surfaces.SURFACES["records"]._replace(allowed=()), campaign.Played(findings=[])
    async with surface.opened(tmp_path) as play:
        await campaign.play_sample(surface, play, b"actions\n{", played, tmp_path)
    assert ["Undecodable: not a actions/1" in finding.what for finding in played.findings] == [True]
