"""The suite `mesh`: ratios, their limits, and programs that are planned without being computed."""

from __future__ import annotations

import pytest

from bench.suites import mesh


@pytest.mark.parametrize(("peer_s", "met"), [(0.0111, True), (0.0109, False)])
def test_a_program_is_held_against_its_peer_by_the_fastest_rounds(peer_s: float, met: bool) -> None:
    case = {"name": "training, data parallel, against DDP", "ours": [0.03, 0.01], "peer": [0.5, peer_s]}
    figure = mesh.program_figure(case, threads=1)
    assert (figure.name, figure.unit) == ("training, data parallel", "x DDP")
    assert figure.value == pytest.approx(peer_s / 0.01)
    assert figure.met is met


def test_every_program_has_a_limit_for_what_it_is_held_against() -> None:
    from bench.mesh_programs import decoding_name

    name = decoding_name(1)
    assert name == "decoding, tensor parallel, 1 token"
    for against, least in ((mesh.ONE_THREAD, 1.4), (mesh.TWO_THREADS, 0.9), ("DTensor", 4.0), ("a peer", None)):
        case = {"name": f"{name}, against {against}", "ours": [0.01], "peer": [0.02]}
        assert mesh.program_figure(case, threads=1).least == least
    assert decoding_name(16).endswith("16 tokens")


def test_plans_are_made_anew_for_each_round_and_have_limits() -> None:
    from bench.mesh_programs import planning

    found = list(planning(2))
    assert {each.name for each in found} == mesh.MOST_MS.keys()
    assert all(len(each.ours) == 2 and min(each.ours) > 0 for each in found)


def test_what_is_hidden_on_a_slow_link_is_of_the_shorter_of_what_is_done_alone() -> None:
    case = {"name": "training, data parallel", "ours": [0.11, 0.2], "peer": [0.132, 0.3]}
    alone = {"computing": [0.09, 0.1], "sending": [0.3, 0.06]}
    ratio, hidden = mesh.link_figures(case | {"alone": alone}, threads=1)
    assert ratio.value == pytest.approx(1.2)
    assert ratio.met
    assert hidden.value == pytest.approx(100 * 0.04 / 0.06)
    assert not hidden.met
    transform = {"name": "transform of 8 images, 8 pieces", "ours": [1.0], "peer": [1.8], "alone": {}}
    (ratio,) = mesh.link_figures(transform, threads=1)
    assert ratio.unit == "x one piece"
    assert ratio.met
